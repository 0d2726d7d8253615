"""Bench results as llama-bench prints them: its table, and its field names in JSON, JSON lines and CSV."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from .bench import BenchResult, cpu_name
from .session import CHUNK, DEFAULT_ACTIVATIONS

FORMATS = ("md", "json", "jsonl", "csv")

# Column, width, whether numbers are right-aligned.
_COLUMNS = (
    ("model", 30, False),
    ("size", 10, True),
    ("params", 10, True),
    ("backend", 10, False),
    ("threads", 7, True),
    ("activations", 11, True),
    ("test", 15, True),
    ("t/s", 20, True),
    ("roofline", 15, True),
)


def render(results: Iterable[BenchResult], output: str, roofline: bool = False) -> Iterator[str]:
    """Lines to print, each as soon as its result is there.

    output: one of `FORMATS`. roofline: whether the table has a column for it; its first row may be of a test that has none.
    """
    version = metadata.version("llamita")
    if output == "md":
        yield from _markdown(results, version, roofline)
    elif output == "csv":
        yield from _csv(results, version)
    elif output == "jsonl":
        yield from (json.dumps(fields(result, version)) for result in results)
    else:
        yield "["
        previous = ""
        for result in results:
            if previous:
                yield previous + ","
            previous = json.dumps(fields(result, version), indent=2)
        if previous:
            yield previous
        yield "]"


def fields(result: BenchResult, version: str) -> dict[str, Any]:
    """One result under llama-bench's names and in its order; what has no meaning here has the value that means "off"."""
    test = result.test
    ns, roof = result.samples_ns, result.roofline
    return {
        "build_commit": version,
        "build_number": 0,
        "cpu_info": cpu_name(),
        "gpu_info": "",
        "backends": "CPU",
        "model_filename": result.model.get("model_filename", ""),
        "model_type": result.model.get("model_type", ""),
        "model_size": result.model.get("model_size", 0),
        "model_n_params": result.model.get("model_n_params", 0),
        "n_batch": max(1, test.n_prompt),
        "n_ubatch": CHUNK,
        "n_threads": result.n_threads,
        "cpu_mask": "0x0",
        "cpu_strict": False,
        "poll": 0,
        "type_k": result.cache_type,
        "type_v": result.cache_type,
        "n_gpu_layers": 0,
        "n_cpu_moe": 0,
        "split_mode": "none",
        "main_gpu": 0,
        "no_kv_offload": False,
        "flash_attn": False,
        "devices": "none",
        "tensor_split": "0.00",
        "tensor_buft_overrides": "none",
        "load_mode": "mmap",
        "lazy_mode": "none",
        "embeddings": False,
        "no_op_offload": 0,
        "no_host": False,
        "repack": True,
        "fit_target": 0,
        "fit_min_ctx": 0,
        "n_prompt": test.n_prompt,
        "n_gen": test.n_gen,
        "n_depth": test.n_depth,
        "test_time": result.test_time,
        "avg_ns": round(statistics.fmean(ns)),
        "stddev_ns": round(statistics.stdev(ns)) if len(ns) > 1 else 0,
        "avg_ts": result.avg_ts,
        "stddev_ts": result.stddev_ts,
        "samples_ns": ns,
        "samples_ts": result.samples_ts,
        "activations": result.activations,
        "bytes_per_token": roof.bytes_per_token if roof else None,
        "read_bandwidth": roof.bytes_per_second if roof else None,
        "roofline_ts": roof.tokens_per_second if roof else None,
        "roofline_share": result.roofline_share,
    }


def size_text(n_bytes: float) -> str:
    """93.02 MiB, 1.25 GiB."""
    return f"{n_bytes / 2**30:.2f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.2f} MiB"


def params_text(n: float) -> str:
    """134.52 M, 1.24 B."""
    return f"{n / 1e9:.2f} B" if n >= 1e9 else f"{n / 1e6:.2f} M"


def _markdown(results: Iterable[BenchResult], version: str, roofline: bool) -> Iterator[str]:
    hidden = () if roofline else ("roofline",)
    columns: list[tuple[str, int, bool]] = []
    for result in results:
        if not columns:  # the table's head waits for the first result, so that an error comes alone
            if result.activations == DEFAULT_ACTIVATIONS:
                hidden = (*hidden, "activations")
            columns = [column for column in _COLUMNS if column[0] not in hidden]
            yield "| " + " | ".join(name.rjust(width) if right else name.ljust(width) for name, width, right in columns) + " |"
            yield "| " + " | ".join("-" * (width - 1) + (":" if right else "-") for _, width, right in columns) + " |"
        values = {
            "model": result.model.get("model_type") or Path(result.model.get("model_filename", "")).name,
            "size": size_text(result.model.get("model_size", 0)),
            "params": params_text(result.model.get("model_n_params", 0)),
            "backend": "CPU",
            "threads": str(result.n_threads),
            "activations": str(result.activations),
            "test": result.test.label,
            "t/s": f"{result.avg_ts:.2f} ± {result.stddev_ts:.2f}",
            "roofline": f"{result.roofline_share:.0%} of {result.roofline.tokens_per_second:.0f}" if result.roofline else "",
        }
        yield "| " + " | ".join(values[name].rjust(width) if right else values[name].ljust(width) for name, width, right in columns) + " |"
    yield ""
    yield f"build: llamita {version}"


def _csv(results: Iterable[BenchResult], version: str) -> Iterator[str]:
    first = True
    for result in results:
        row = {key: value for key, value in fields(result, version).items() if not key.startswith("samples_")}
        text = io.StringIO()
        writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="")
        if first:
            yield ",".join(row)
            first = False
        writer.writerow(["" if value is None else int(value) if isinstance(value, bool) else value for value in row.values()])
        yield text.getvalue()
