"""CSV traces, synthetic lengths and arrival times."""

from __future__ import annotations

import math
from itertools import islice, pairwise
from pathlib import Path

import pytest

from sarathi.benchmark.workloads import (
    fixed_lengths,
    poisson_arrivals,
    static_arrivals,
    synthetic_workload,
    trace_lengths,
    trace_workload,
)

HEADER = "arrived_at,num_prefill_tokens,num_decode_tokens\n"


@pytest.fixture
def trace(tmp_path):
    def write(text: str | bytes) -> Path:
        path = tmp_path / "trace.csv"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def rows(workload) -> list[tuple[float, int, int]]:
    return [(r.arrival_time, r.num_prompt_tokens, r.num_output_tokens) for r in workload.requests]


def test_byte_order_mark_blank_lines_and_floats_are_read(trace):
    text = "\ufeff" + HEADER + "\n0,3.0,4\r\n  \n,,\n 1.5 , 7 , 2.9 \n\n"
    assert rows(trace_workload(trace(text))) == [(0.0, 3, 4), (1.5, 7, 2)]


def test_columns_are_found_by_name(trace):
    text = "pd_ratio, num_decode_tokens ,x,num_prefill_tokens,arrived_at\n9,1,junk,2,3\n"
    assert rows(trace_workload(trace(text))) == [(3.0, 2, 1)]


def test_unsorted_arrivals_are_sorted_and_said(trace):
    workload = trace_workload(trace(HEADER + "5,1,1\n2,2,2\n9,3,3\n2,4,4\n"), num_requests=3)
    assert rows(workload) == [(2.0, 2, 2), (2.0, 4, 4), (5.0, 1, 1)]
    assert any("not in order (2 rows" in note for note in workload.notes)
    assert any("3 of 4 rows" in note for note in workload.notes)
    sorted_one = trace_workload(trace(HEADER + "1,1,1\n2,2,2\n"))
    assert not any("order" in note for note in sorted_one.notes)


def test_no_output_is_kept_and_no_prompt_is_not(trace):
    workload = trace_workload(trace(HEADER + "0,0,0\n"))
    assert rows(workload) == [(0.0, 1, 0)]
    assert any("1 prompts of 0 tokens" in note for note in workload.notes)
    assert any("1 requests have 0 output tokens" in note for note in workload.notes)


def test_scale_factors(trace):
    path = trace(HEADER + "0,10,10\n4,100,9\n")
    workload = trace_workload(path, time_scale_factor=0.5, prefill_scale_factor=2, decode_scale_factor=0.5)
    assert rows(workload) == [(0.0, 20, 5), (2.0, 200, 4)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEADER + "0,1,1\n\n1,-5,1\n", r"trace\.csv, line 4, column num_prefill_tokens: -5 is not allowed"),
        (HEADER + "0,1,-0.5\n", r"line 2, column num_decode_tokens: -0\.5"),
        (HEADER + "-1,1,1\n", r"line 2, column arrived_at: -1"),
        (HEADER + "0,1,1\n1,many,1\n", r"line 3, column num_prefill_tokens: 'many' is not a number"),
        (HEADER + "0,1\n", r"line 2, column num_decode_tokens: '' is not a number"),
        (HEADER + "nan,1,1\n", r"line 2, column arrived_at: nan is not allowed"),
        (HEADER + "0,inf,1\n", r"line 2, column num_prefill_tokens: inf is not allowed"),
        ("arrived_at,num_decode_tokens\n0,1\n", r"line 1: column num_prefill_tokens is missing; it has arrived_at"),
        ("", r"trace\.csv: empty"),
        ("\n\n", r"trace\.csv: empty"),
        (HEADER, r"trace\.csv: no rows"),
        (b"\xff\xfea\x00", r"trace\.csv: not a UTF-8 text file"),
    ],
)
def test_a_bad_trace_is_one_line_naming_file_line_and_column(trace, text, said):
    with pytest.raises(ValueError, match=said) as error:
        trace_workload(trace(text))
    assert "\n" not in str(error.value)


def test_a_missing_trace_is_named(tmp_path):
    for load in (trace_workload, trace_lengths):
        with pytest.raises(ValueError, match=r"nowhere\.csv: cannot be read \(No such file"):
            load(tmp_path / "nowhere.csv")
    with pytest.raises(ValueError, match="cannot be read"):
        trace_workload(tmp_path)


@pytest.mark.parametrize("name", ["num_requests", "time_scale_factor", "prefill_scale_factor", "decode_scale_factor"])
def test_bad_replay_settings(trace, name):
    with pytest.raises(ValueError, match=f"{name}: 0 is not allowed"):
        trace_workload(trace(HEADER + "0,1,1\n"), **{name: 0})


def test_lengths_are_shortened_in_proportion_to_max_tokens(trace):
    path = trace("num_prefill_tokens,num_decode_tokens\n300,100\n50,50\n1,9000\n0,7\n")
    lengths = trace_lengths(path, max_tokens=200)
    assert sorted(islice(lengths.pairs, 4)) == [(1, 7), (1, 199), (50, 50), (150, 50)]
    said = "\n".join(lengths.notes)
    assert "max_tokens 200 shortened 2 of 4 rows by 9,001 tokens in all (longest 9,001)" in said
    assert "1 rows with a count of 0" in said


def test_lengths_are_scaled_before_they_are_shortened(trace):
    path = trace("num_prefill_tokens,num_decode_tokens\n100,10\n")
    lengths = trace_lengths(path, prefill_scale_factor=2, decode_scale_factor=0.5, max_tokens=205)
    assert next(lengths.pairs) == (200, 5)
    assert not any("shortened" in note for note in lengths.notes)


def test_lengths_come_in_upstreams_order_and_then_again(trace):
    path = trace("num_prefill_tokens,num_decode_tokens\n" + "".join(f"{n},1\n" for n in range(1, 11)))
    # pandas.DataFrame({"n": range(1, 11)}).sample(frac=1, random_state=42)
    first_pass = [9, 2, 6, 1, 8, 3, 10, 5, 4, 7]
    drawn = [prompt for prompt, _ in islice(trace_lengths(path, seed=42).pairs, 20)]
    assert drawn[:10] == first_pass
    assert sorted(drawn[10:]) == sorted(first_pass) and drawn[10:] != first_pass
    workload = synthetic_workload(trace_lengths(path, seed=42), static_arrivals(1), 25)
    assert [r.num_prompt_tokens for r in workload.requests[:20]] == drawn
    assert any("25 requests from 10 rows: they were used 2.5 times" in note for note in workload.notes)


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [({"max_tokens": 1}, "max_tokens: 1"), ({"prefill_scale_factor": -1}, "prefill_scale_factor: -1")],
)
def test_bad_length_settings(trace, kwargs, said):
    with pytest.raises(ValueError, match=said):
        trace_lengths(trace("num_prefill_tokens,num_decode_tokens\n1,1\n"), **kwargs)


def test_fixed_lengths():
    assert list(islice(fixed_lengths(4096, 512).pairs, 2)) == [(4096, 512)] * 2
    assert next(fixed_lengths(1, 0).pairs) == (1, 0)
    with pytest.raises(ValueError, match="prefill_tokens: 0"):
        fixed_lengths(0, 1)
    with pytest.raises(ValueError, match="decode_tokens: -1"):
        fixed_lengths(1, -1)


def test_synthetic_requests_stop_at_the_number_or_the_duration():
    workload = synthetic_workload(fixed_lengths(8, 2), static_arrivals(0.5), 4)
    assert rows(workload) == [(0.0, 8, 2), (0.5, 8, 2), (1.0, 8, 2), (1.5, 8, 2)]
    assert [r.request_id for r in workload.requests] == ["0", "1", "2", "3"]
    workload = synthetic_workload(fixed_lengths(8, 2), static_arrivals(0.5), 100, duration=1.0)
    assert [r.arrival_time for r in workload.requests] == [0.0, 0.5]
    assert any("stopped at duration 1 s after 2 of 100" in note for note in workload.notes)
    workload = synthetic_workload(fixed_lengths(8, 2), static_arrivals(0.5), None, duration=2.0)
    assert len(workload.requests) == 4
    with pytest.raises(ValueError, match="num_requests: None is not allowed without a duration"):
        synthetic_workload(fixed_lengths(8, 2), static_arrivals(0.5), None)
    with pytest.raises(ValueError, match="duration: 2 s is never reached"):
        synthetic_workload(fixed_lengths(8, 2), static_arrivals(0), None, duration=2)
    with pytest.raises(ValueError, match="duration: 0 is"):
        synthetic_workload(fixed_lengths(8, 2), static_arrivals(0.5), 100, duration=0)
    with pytest.raises(ValueError, match="num_requests: 0"):
        synthetic_workload(fixed_lengths(8, 2), static_arrivals(0.5), 0)


def test_static_arrivals_do_not_drift():
    assert list(islice(static_arrivals(0.1), 1001))[-1] == 100.0
    assert list(islice(static_arrivals(0), 3)) == [0, 0, 0]
    for interval in (-1, math.inf, math.nan):
        with pytest.raises(ValueError, match="interval: "):
            static_arrivals(interval)


def test_poisson_arrivals():
    times = list(islice(poisson_arrivals(4, seed=42), 20_000))
    assert times[0] == -math.log(1 - 0.6394267984578837) / 4  # random.Random(42)'s first number
    assert times == list(islice(poisson_arrivals(4, seed=42), 20_000))
    assert times[:9] != list(islice(poisson_arrivals(4, seed=43), 9))
    assert len(times) / times[-1] == pytest.approx(4, rel=0.02)  # gaps cut at 3 / qps would give 4.2
    gaps = [b - a for a, b in pairwise(times)]
    assert sum(gap > 1 for gap in gaps) / len(gaps) == pytest.approx(math.exp(-4), rel=0.15)
    for qps in (0, -1, math.inf, math.nan):
        with pytest.raises(ValueError, match="qps: "):
            poisson_arrivals(qps, seed=1)


def test_public_traces_are_read(shared):
    traces = shared / "traces"
    workload = trace_workload(traces / "splitwise_conv.csv")
    assert len(workload.requests) == 19_366
    assert rows(workload)[1] == (4.314579, 396, 109)
    lengths = trace_lengths(traces / "sharegpt_8k_filtered_stats_llama2_tokenizer.csv", max_tokens=8192)
    assert lengths.num_rows == 30_731
    assert sum(sum(pair) for pair in islice(lengths.pairs, 30_731)) == 85_393_559  # the file's own num_total_tokens
