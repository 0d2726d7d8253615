"""README and docs: what they name exists, and what they show runs."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import llamita
from llamita.cli import main

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def tree() -> list[tuple[str, str]]:
    """(path, phrase) of each line of the README's tree."""
    block = README.split("## The tree")[1].split("\n## ")[0]
    found, folder = [], ""
    for line in block.splitlines():
        match = re.fullmatch(r"    (  )?(\S+) +(\S.*)", line)
        if match is not None:
            indented, name, phrase = match.groups()
            if not indented:
                folder = name if name.endswith("/") else ""
            found.append((folder + name if indented else name, phrase))
    return found


def test_the_tree_names_real_files_with_a_phrase_each() -> None:
    assert len(tree()) > 25
    assert [path for path, _ in tree() if not (ROOT / path).exists()] == []
    assert [path for path, phrase in tree() if len(phrase) < 10] == []


def test_the_tree_names_every_room() -> None:
    named = {path for path, _ in tree()}
    rooms = {f"{path.parent.name}/" for path in ROOT.glob("*/__init__.py")}
    inner = {f"engine/{path.parent.name}/" for path in ROOT.glob("engine/*/__init__.py")}
    assert rooms | inner | {"tests/", "benchmarks/", "docs/"} <= named


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_formats_and_architectures_are_those_of_the_code() -> None:
    from llamita.models.config import ARCHITECTURES
    from llamita.quant.formats import FORMATS

    (types,) = re.findall(r"\| Tensor types \| (.*) \|", README)
    assert set(types.split()) == set(FORMATS)
    (architectures,) = re.findall(r"\| Architectures \| (.*) \|", README)
    assert [name for name in ARCHITECTURES if name not in architectures] == []


def test_every_command_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    commands = re.findall(r"^  ([a-z]+) ", capsys.readouterr().out.split("Commands:")[1], re.MULTILINE)
    assert len(commands) == 9 and [command for command in commands if f"`llamita {command}" not in README] == []


def code(page: Path) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))


def test_the_readmes_python_runs(real_model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code(ROOT / "README.md"), "README.md", "exec"), {})
    assert "Usage(" in capsys.readouterr().out


def test_how_a_token_is_made(real_model_path: Path) -> None:
    """Runs the page's code; an expression with a comment behind it must have that value."""
    source = code(ROOT / "docs" / "how-a-token-is-made.md")
    names: dict[str, object] = {"llamita": llamita}
    lines = source.splitlines()
    checked = 0
    for node in ast.parse(source).body:
        text = ast.get_source_segment(source, node) or ""
        comment = lines[(node.end_lineno or 0) - 1].rpartition("  # ")[2] if "  # " in lines[(node.end_lineno or 0) - 1] else ""
        if isinstance(node, ast.Expr):
            value = eval(text, names)
            if comment and ":" not in comment:
                assert repr(value).replace("'", '"') == comment
                checked += 1
        else:
            exec(text, names)
    assert checked >= 4 and names["same"] is True
    assert str(names["text"]).startswith(" Jupiter, but")
    assert getattr(names["logits"], "shape", None) == (1, 8, 49152)
