"""The tables of the documentation: made from results, written between markers, nothing else touched."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from performance_tables import BLOCKS, write_tables

PAGES = [Path(__file__).parents[2] / name for name in ("README.md", "docs/performance.md")]


def result(test: str, ratio: float, activations: int = 16, **more: float) -> dict[str, object]:
    counts = {"n_prompt": int(test.startswith("pp")), "n_gen": int(test.startswith("tg")), "n_depth": 0, "n_threads": 2}
    speeds = {"llamita_ts": 100 * ratio, "llamacpp_ts": 100.0, "ratio": ratio, "others_cpu": 0.0}
    return {"test": test, "activations": activations, **counts, **speeds, **more}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    def put(section: str, name: str, report: object) -> None:
        (tmp_path / section).mkdir(exist_ok=True)
        (tmp_path / section / f"{name}.json").write_text(json.dumps(report))

    put("types", "F16", {"results": [result("pp512", 1.25), result("tg128", 0.5, roofline_share=0.875, roofline_ts=57.1)]})
    put(
        "types",
        "Q4_0",
        {"results": [result("pp512", 1.5), result("pp512", 3.0, 8), result("tg128", 2.0, roofline_share=0.75, roofline_ts=267.0)]},
    )
    put("kl", "Q4_0", [{"kl": {"8": {"mean": 3e-3}, "16": {"mean": 5e-7}, "llama.cpp": {"mean": 3e-3}}}])
    return tmp_path


def test_tables_stand_between_their_markers(results: Path) -> None:
    page = results / "page.md"
    page.write_text("before\n<!-- begin types -->\nold\n<!-- end types -->\nbetween\n<!-- begin kl -->\n<!-- end kl -->\nafter\n")
    targets = write_tables(results, ["types"], [page])
    lines = page.read_text().splitlines()
    assert [line for line in lines if line in ("before", "old", "between", "after")] == ["before", "between", "after"]
    assert lines[3:5] == [
        "| Type | pp512, 16 bits | pp512, 8 bits | tg128, 16 bits | of the roofline |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    assert lines[5:7] == [
        "| Q4_0 | 150 (1.50) | 300 (3.00) | 200 (2.00) | 75% of 267 |",
        "| F16 | 125 (1.25) |  | 50.0 (0.50) | 88% of 57 |",
    ]
    assert lines[-3:-1] == ["<!-- begin kl -->", "<!-- end kl -->"]  # a section that was not asked for
    assert "| decode: part of the roofline | at least 0.8 | 0.75 (Q4_0) | Q4_0 |" in targets
    assert "| divergence: llama.cpp's over llamita's | at least 10 | 6e+03 (Q4_0) |  |" in targets
    assert "| pp4096, 16 bits | at least 2 | not measured |  |" in targets
    again = page.read_text()
    write_tables(results, ["types"], [page])
    assert page.read_text() == again


def test_the_pages_have_a_place_for_every_table() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in BLOCKS if text.count(f"<!-- begin {name} -->") != 1 or text.count(f"<!-- end {name} -->") != 1] == []
