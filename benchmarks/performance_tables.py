"""The tables of performance.py, made from its results, and the targets held against them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from interference import TOLERATED
from performance_results import DEFAULT_WIDTH, Result, Results, python_share
from performance_targets import targets


def table(head: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> list[str]:
    """Markdown; the first `words` columns are left-aligned."""
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" if i < words else "---:" for i in range(len(head))) + " |"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def disturbed(tests: Sequence[Result]) -> list[str]:
    """A warning, where other programs computed too."""
    worst = max((test["others_cpu"] for test in tests), default=0.0)
    return ["", f"Other programs took up to {worst:.0%} of the processors during these tests."] if worst > TOLERATED else []


def comparison(results: Results, section: str) -> list[str]:
    """A row a type, a column a test and width: llamita's tokens per second, and the ratio to llama.cpp's."""
    tests = results.tests(section)
    ordered = sorted(tests, key=lambda test: (-test["n_prompt"], test["n_depth"], -test["activations"]))
    columns = list(dict.fromkeys((test["test"], test["activations"]) for test in ordered))
    head = ["Type", *(f"{test}, {width} bits" for test, width in columns)]
    with_roof = any("roofline_share" in test for test in tests)
    rows = []
    for name in dict.fromkeys(test["name"] for test in tests):
        found = {(test["test"], test["activations"]): test for test in tests if test["name"] == name}
        row = [name, *(_speed(found.get(column)) for column in columns)]
        if with_roof:
            row.append(next((_roof(test) for test in found.values() if test["activations"] == DEFAULT_WIDTH and test["n_gen"]), ""))
        rows.append(row)
    return table([*head, "of the roofline"] if with_roof else head, rows) + disturbed(tests)


def _speed(test: Result | None) -> str:
    if test is None:
        return ""
    digits = 0 if test["llamita_ts"] >= 100 else 1
    return f"{test['llamita_ts']:.{digits}f} ({test['ratio']:.2f})"


def _roof(test: Result) -> str:
    return f"{test['roofline_share']:.0%} of {test['roofline_ts']:.0f}"


def default_model(results: Results) -> list[str]:
    """Both sides' tokens per second, a row a test."""
    tests = results.tests("default")
    tests.sort(key=lambda test: (-test["n_threads"], -test["n_prompt"], -test["activations"]))
    rows = [
        [test["test"], str(test["n_threads"]), str(test["activations"]), *(f"{test[side]:.0f}" for side in ("llamita_ts", "llamacpp_ts"))]
        for test in tests
    ]
    for row, test in zip(rows, tests, strict=True):
        row.append(f"{test['ratio']:.1f}")
    return table(("Test", "Threads", "Activations", "llamita", "llama.cpp", "Ratio"), rows) + disturbed(tests)


def accuracy(results: Results) -> list[str]:
    """Mean divergences."""
    rows = []
    for name, report in results.reports("kl").items():
        kl = {side: summary["mean"] for side, summary in report[0]["kl"].items()}
        ours = [f"{kl[width]:.1e}" if width in kl else "" for width in ("16", "8")]
        rows.append([name, *ours, f"{kl['llama.cpp']:.1e}", f"{kl['llama.cpp'] / kl['16']:.0f}"])
    return table(("Type", "llamita, 16 bits", "llamita, 8 bits", "llama.cpp", "llama.cpp / llamita, 16 bits"), rows)


def footprint(results: Results) -> list[str]:
    """Start, memory, Python's share."""
    (name, found), *_ = results.reports("footprint").items()
    start, memory, mib = found["start"], found["memory"], 1 << 20
    rows = [
        ["process start to first token, Python", f"{start['llamita']:.2f} s", f"{start['llama.cpp']:.2f} s"],
        ["process start to first token, command line", f"{start['command line']:.2f} s", ""],
        ["kernels from nothing, once on a machine", f"{found['kernels']:.1f} s", ""],
        ["peak memory", f"{memory['llamita'] / mib:.0f} MiB", f"{memory['llama.cpp'] / mib:.0f} MiB"],
        ["file and cache", f"{(memory['file'] + memory['cache']) / mib:.0f} MiB", ""],
        ["Python's part of a decode step", f"{python_share(found, 'forward'):.1%}", ""],
        ["with sampling and text", f"{python_share(found, 'generation'):.1%}", ""],
    ]
    return table((name, "llamita", "llama.cpp"), rows)


def machine(results: Results) -> list[str]:
    """What ran on what."""
    report = next(iter((results.reports("default") or results.reports("types")).values()))
    ours, theirs = report["llamita"], report["llamacpp"]
    on = sorted(re.findall(r"(\w+) = 1", theirs["features"]))
    return [f"{report['cpu']}; llamita {ours['version']} ({ours['features']}); llama-cpp-python {theirs['version']} ({', '.join(on)})."]


def targets_table(results: Results) -> list[str]:
    """Each target with the worst that was found, and what falls short of it."""
    rows = []
    for target in targets(results):
        worst = target.worst()
        found = f"{worst[1]:.3g} ({worst[0]})" if worst else "not measured"
        rows.append([target.name, f"{target.sense} {target.bar:g}", found, ", ".join(target.short())])
    return table(("Target", "Bar", "Worst", "Short of it"), rows, words=2)


_SOURCES = ("default", "types", "thread", "depth", "prompt", "larger", "kl", "footprint", "avx2")


def _of_section(section: str) -> Callable[[Results], list[str]]:
    return lambda results: comparison(results, section)


# Name between the markers -> the sections that it is made of, and what makes it.
BLOCKS: dict[str, tuple[tuple[str, ...], Callable[[Results], list[str]]]] = {
    "machine": (("default", "types"), machine),
    "default": (("default",), default_model),
    **{section: ((section,), _of_section(section)) for section in ("types", "thread", "depth", "prompt", "larger", "avx2")},
    "kl": (("kl",), accuracy),
    "footprint": (("footprint",), footprint),
    "targets": (_SOURCES, targets_table),
}


def write_tables(folder: Path, sections: Sequence[str], documents: Iterable[Path]) -> list[str]:
    """Replace what stands between the markers of these sections, where there are results; returns the targets' table."""
    results = Results(folder)
    for document in documents:
        text = document.read_text(encoding="utf-8")
        for name, (sources, render) in BLOCKS.items():
            marked = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
            if marked.search(text) and set(sources) & set(sections) and any(results.reports(source) for source in sources):
                block = "\n".join(["", *render(results), "", ""])
                text = marked.sub(lambda found, block=block: found[1] + block + found[2], text)
        document.write_text(text, encoding="utf-8")
    return targets_table(results)
