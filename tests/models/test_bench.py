"""bench: which tests are run, what is measured, and how it is printed."""

from __future__ import annotations

import csv
import io
import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from gguf_fixtures import write_tiny_llama
from mock_model import BOS, MockModel

from llamita.engine.errors import InvalidArgument
from llamita.models.bench import BenchResult, BenchTest, Roofline, bench, measure, parse_counts, plan_tests, short_count
from llamita.models.bench_output import fields, params_text, render, size_text

MODEL = {"model_filename": "/models/m.gguf", "model_type": "llama 135M Q4_1", "model_size": 96_576_768, "model_n_params": 134_515_008}
RESULT = BenchResult(BenchTest(512, 0), 2, [500_000_000, 512_000_000], "2026-01-02T03:04:05Z", 16, MODEL)

# llama-bench's fields, in its order.
LLAMA_BENCH = """build_commit build_number cpu_info gpu_info backends model_filename model_type model_size model_n_params n_batch n_ubatch
n_threads cpu_mask cpu_strict poll type_k type_v n_gpu_layers n_cpu_moe split_mode main_gpu no_kv_offload flash_attn devices tensor_split
tensor_buft_overrides load_mode lazy_mode embeddings no_op_offload no_host repack fit_target fit_min_ctx n_prompt n_gen n_depth test_time
avg_ns stddev_ns avg_ts stddev_ts""".split()


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("512", [512]),
        ("1,2,4", [1, 2, 4]),
        ("1-4", [1, 2, 3, 4]),
        ("64-256+64", [64, 128, 192, 256]),
        ("64-512*2", [64, 128, 256, 512]),
        ("0, 7,5-6", [0, 7, 5, 6]),
    ],
)
def test_counts(text: str, numbers: list[int]) -> None:
    assert parse_counts("-p", text) == numbers


@pytest.mark.parametrize("text", ["", "a", "-1", "1,", "4-1", "1-4+0", "1-4*1", "0-4*2", "1.5", "1-99999999"])
def test_counts_that_are_refused_name_the_option(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^-p "):
        parse_counts("-p", text)


def test_tests_come_in_llama_benchs_order() -> None:
    tests = plan_tests("512,64", "128,0", ["16,8"], "0,32")
    names = ["pp512", "pp64", "tg128", "pp16+tg8"]
    assert [test.label for test in tests] == names + [f"{name} @ d32" for name in names]
    assert tests[-1].n_tokens == 56
    assert [test.label for test in plan_tests("0", "4")] == ["tg4"]


def test_prompt_is_evaluated_at_once_and_text_token_by_token() -> None:
    decoder = MockModel(n_ctx=64)
    assert len(measure(decoder, BenchTest(8, 3), 2, bos=BOS, warmup=False)) == 2
    assert [len(call) for call in decoder.calls] == [8, 1, 1, 1] * 2
    assert decoder.calls[0][0] == BOS and decoder.calls[:4] == decoder.calls[4:]


def test_warm_up_is_the_whole_prompt_or_one_token() -> None:
    decoder = MockModel(n_ctx=64)
    measure(decoder, BenchTest(8, 0), 1)
    measure(decoder, BenchTest(0, 3), 1)
    assert [len(call) for call in decoder.calls] == [8, 8] + [1] * 4


def test_depth_is_evaluated_once_and_not_measured() -> None:
    decoder = MockModel(n_ctx=64)
    measure(decoder, BenchTest(0, 2, 10), 2, bos=BOS, warmup=False)
    assert [len(call) for call in decoder.calls] == [10, 1, 1, 1, 1]
    assert decoder.calls[0][0] == BOS and len(decoder.cached_ids) == 12


def test_speed_is_the_mean_of_the_samples_with_their_sample_deviation() -> None:
    speeds = [1024.0, 1000.0]
    assert RESULT.samples_ts == speeds
    assert RESULT.avg_ts == 1012.0 and RESULT.stddev_ts == statistics.stdev(speeds)
    assert replace(RESULT, samples_ns=[1_000_000_000]).stddev_ts == 0.0


def test_fields_are_llama_benchs() -> None:
    values = fields(RESULT, "1.0")
    names = list(values)
    assert names[: len(LLAMA_BENCH)] == LLAMA_BENCH
    roofline = ["bytes_per_token", "read_bandwidth", "roofline_ts", "roofline_share"]
    assert names[len(LLAMA_BENCH) :] == ["samples_ns", "samples_ts", "activations", *roofline]
    assert [values[name] for name in roofline] == [None] * 4
    assert values["avg_ns"] == 506_000_000 and values["stddev_ns"] == 8_485_281 and values["n_prompt"] == 512
    assert values["type_k"] == "f16" and fields(replace(RESULT, cache_type="f32"), "1.0")["type_k"] == "f32"


def test_markdown_is_llama_benchs_table() -> None:
    lines = list(render([RESULT, replace(RESULT, test=BenchTest(0, 128, 64))], "md"))
    assert [column.strip() for column in lines[0].strip("|").split("|")] == ["model", "size", "params", "backend", "threads", "test", "t/s"]
    assert [column.strip() for column in lines[2].strip("|").split("|")] == [
        *("llama 135M Q4_1", "92.10 MiB", "134.52 M", "CPU", "2", "pp512", "1012.00 ± 16.97")
    ]
    assert "tg128 @ d64" in lines[3] and lines[-1].startswith("build: ")
    assert len({len(line) for line in lines[:4]}) == 1
    assert set(lines[1]) == set("|-: ")


def test_settings_that_are_not_the_default_get_a_column() -> None:
    lines = list(render([replace(RESULT, activations=8)], "md"))
    assert "activations" in lines[0]


DECODE = replace(RESULT, test=BenchTest(0, 128), roofline=Roofline(100_000_000, 204.8e9))


def test_roofline_is_what_reading_alone_would_allow() -> None:
    assert DECODE.roofline is not None and DECODE.roofline.tokens_per_second == 2048.0
    assert DECODE.avg_ts == 253.0 and DECODE.roofline_share == 253 / 2048
    values = fields(DECODE, "1.0")
    assert (values["bytes_per_token"], values["read_bandwidth"], values["roofline_ts"]) == (100_000_000, 204.8e9, 2048.0)
    assert values["roofline_share"] == DECODE.roofline_share


def test_roofline_stands_beside_decode_alone() -> None:
    lines = list(render([RESULT, DECODE], "md", roofline=True))
    assert lines[0].rstrip("| ").endswith("roofline")
    assert lines[2].rstrip("| ").endswith("16.97") and lines[3].rstrip("| ").endswith("% of 2048")
    assert len({len(line) for line in lines[:4]}) == 1


def test_every_decode_result_of_a_model_has_its_roofline(tmp_path: Path) -> None:
    shape = {"head_dim": 16, "n_heads": 2, "n_kv_heads": 1, "hidden": 32, "ffn": 64, "n_layers": 2}
    write_tiny_llama(tmp_path / "tiny.gguf", weight_type="Q8_0", tied=True, **shape)
    tests = plan_tests("8", "4", ["4,4"], "0,6")
    results = list(bench(str(tmp_path / "tiny.gguf"), tests, [1], repetitions=1))
    rooflines = [result.roofline for result in results]
    assert [bool(roofline) for roofline in rooflines] == [test.is_decode for test in tests] == [False, True, False] * 2
    kv_bytes = 2 * 2 * 16 * 2  # keys and values of two layers, sixteen float16 numbers
    first, deep = rooflines[1], rooflines[4]
    assert first and deep and deep.bytes_per_token - first.bytes_per_token == 6 * kv_bytes
    assert 0 < (results[1].roofline_share or 0) < 1
    assert not any(result.roofline for result in bench(str(tmp_path / "tiny.gguf"), tests, [1], repetitions=1, roofline=False))


def test_json_lines_and_csv_hold_the_same() -> None:
    results = [RESULT, replace(RESULT, n_threads=1)]
    from_json = json.loads("\n".join(render(results, "json")))
    from_lines = [json.loads(line) for line in render(results, "jsonl")]
    assert from_json == from_lines and [entry["n_threads"] for entry in from_json] == [2, 1]
    rows = list(csv.DictReader(io.StringIO("\n".join(render(results, "csv")))))
    assert list(rows[0])[: len(LLAMA_BENCH)] == LLAMA_BENCH
    assert [row["n_threads"] for row in rows] == ["2", "1"] and rows[0]["avg_ts"] == "1012.0" and rows[0]["repack"] == "1"


def test_no_results_are_an_empty_list() -> None:
    assert json.loads("\n".join(render([], "json"))) == []


def test_sizes_as_people_write_them() -> None:
    assert [short_count(n) for n in (134_515_008, 1_235_814_432, 7_241_732_096, 70_553_706_496, 260_000, 12)] == [
        *("135M", "1.2B", "7.2B", "71B", "260K", "12")
    ]
    assert size_text(1.5 * 2**30) == "1.50 GiB" and size_text(2**20) == "1.00 MiB"
    assert params_text(1_240_000_000) == "1.24 B" and params_text(500_000) == "0.50 M"
