"""CSV traces, synthetic lengths and arrival times."""

from __future__ import annotations

import math
from itertools import islice, pairwise
from pathlib import Path

import pytest

from sarathi.benchmark import workloads
from sarathi.benchmark.workloads import Lengths, Shaping, Workload, fixed_lengths, poisson_arrivals, static_arrivals

HEADER = "arrived_at,num_prefill_tokens,num_decode_tokens\n"


def shaping(prefill=1.0, decode=1.0, max_tokens=None, max_output_tokens=None, least=0) -> Shaping:
    return Shaping(
        prefill_scale_factor=prefill,
        decode_scale_factor=decode,
        max_tokens=max_tokens,
        max_output_tokens=max_output_tokens,
        min_output_tokens=least,
    )


def replay(path, num_requests=None, time_scale_factor=1.0, **kwargs) -> Workload:
    return workloads.trace_workload(
        path, num_requests=num_requests, time_scale_factor=time_scale_factor, shaping=shaping(**kwargs)
    )


def trace_lengths(path, seed=42, **kwargs) -> Lengths:
    return workloads.trace_lengths(path, shaping=shaping(least=1, **kwargs), seed=seed)


def synthetic(arrivals, num_requests, duration=None, lengths=None) -> Workload:
    lengths = lengths or fixed_lengths(8, 2)
    return workloads.synthetic_workload(lengths, arrivals, num_requests=num_requests, duration=duration)


@pytest.fixture
def trace(tmp_path):
    def write(text: str | bytes) -> Path:
        path = tmp_path / "trace.csv"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def rows(workload) -> list[tuple[float, int, int]]:
    return [(r.arrival_time, r.num_prompt_tokens, r.num_output_tokens) for r in workload.requests]


def test_counts_are_cut_to_integers(trace):
    assert rows(replay(trace(HEADER + "0,3.0,4\n1.5,7,2.9\n"))) == [(0.0, 3, 4), (1.5, 7, 2)]


def test_unsorted_arrivals_are_sorted_and_said(trace):
    workload = replay(trace(HEADER + "5,1,1\n2,2,2\n9,3,3\n2,4,4\n"), num_requests=3)
    assert rows(workload) == [(0.0, 2, 2), (0.0, 4, 4), (3.0, 1, 1)]
    assert any("not in order (2 rows" in note for note in workload.notes)
    assert any("3 of 4 rows" in note for note in workload.notes)
    sorted_one = replay(trace(HEADER + "1,1,1\n2,2,2\n"))
    assert not any("order" in note for note in sorted_one.notes)


def test_no_output_is_kept_and_no_prompt_is_not(trace):
    workload = replay(trace(HEADER + "0,0,0\n"))
    assert rows(workload) == [(0.0, 1, 0)]
    assert any("1 rows with a count of 0 were given 1 token" in note for note in workload.notes)
    assert any("1 rows have 0 output tokens" in note for note in workload.notes)


def test_scale_factors(trace):
    path = trace(HEADER + "0,10,10\n4,100,9\n")
    workload = replay(path, time_scale_factor=0.5, prefill=2, decode=0.5)
    assert rows(workload) == [(0.0, 20, 5), (2.0, 200, 4)]


def test_a_bad_trace_is_one_line_naming_file_line_and_column(trace, tmp_path):
    for read in (replay, trace_lengths):
        with pytest.raises(ValueError, match=r"trace\.csv, line 3, column num_prefill_tokens: -5 is not allowed"):
            read(trace(HEADER + "0,1,1\n1,-5,1\n"))
        with pytest.raises(ValueError, match=r"nowhere\.csv: cannot be read \(No such file"):
            read(tmp_path / "nowhere.csv")


def test_arrival_times_beyond_all_numbers_are_refused(trace):
    for factor in (1e308, 2e11):
        with pytest.raises(ValueError, match=r"time_scale_factor: \S+ is too large for .*trace\.csv; its last request"):
            replay(trace(HEADER + "0,1,1\n9,1,1\n"), time_scale_factor=factor)
    with pytest.raises(
        ValueError, match=r"num_requests: request 3 would arrive at 2e\+12 s; at most 1,000,000,000,000"
    ):
        synthetic(static_arrivals(1e12), 3)


@pytest.mark.parametrize(("first", "factor"), [(1.7e9, 1.0), (1.7e18, 1e-9)])
def test_a_trace_begins_at_its_first_arrival(trace, first, factor):
    """Times of day in seconds or nanoseconds: what counts is the distance, and the clock stays exact."""
    step = 0.5 / factor
    workload = replay(trace(HEADER + f"{first},1,1\n{first + step!r},2,2\n"), time_scale_factor=factor)
    assert rows(workload) == [(0.0, 1, 1), (0.5, 2, 2)]
    assert f"arrival times begin at 0; {first:,.3f} was taken off each before scaling" in workload.notes
    assert not any("taken off" in note for note in replay(trace(HEADER + "0,1,1\n")).notes)


@pytest.mark.parametrize("cells", ["0,10000000000000000000,1", "0,1,1e308", "0,1e9999,1", "1e308,1,1"])
def test_numbers_beyond_all_sense_are_refused_with_their_line(trace, cells):
    with pytest.raises(
        ValueError, match=r"trace\.csv, line 3, column \w+: \S+ is not allowed; a number from 0 to 1,?0"
    ):
        replay(trace(HEADER + f"0,1,1\n{cells}\n"))


def test_a_replay_is_shortened_in_proportion_to_max_tokens(trace):
    """As trace lengths are; an output of 0 tokens stays one, another keeps at least 1 token."""
    text = HEADER + "0,300,100\n1,50,50\n2,9000,0\n3,9000,1\n"
    workload = replay(trace(text), max_tokens=200, max_output_tokens=90)
    assert rows(workload) == [(0.0, 153, 46), (1.0, 50, 50), (2.0, 200, 0), (3.0, 199, 1)]
    assert "max_tokens 200 shortened 3 of 4 rows by 17,792 tokens in all (longest 9,001)" in workload.notes
    assert "max_output_tokens 90 capped the outputs of 1 rows" in workload.notes


def test_lengths_beyond_all_sizes_are_cut(trace):
    assert rows(replay(trace(HEADER + "0,9e8,9e8\n"), prefill=1e300, decode=1e300)) == [(0.0, 10**15, 10**15)]


def test_lengths_are_shortened_in_proportion_to_max_tokens(trace):
    path = trace("num_prefill_tokens,num_decode_tokens\n300,100\n50,50\n1,9000\n0,7\n")
    lengths = trace_lengths(path, max_tokens=200)
    assert sorted(islice(lengths.pairs, 4)) == [(1, 7), (1, 199), (50, 50), (150, 50)]
    said = "\n".join(lengths.notes)
    assert "max_tokens 200 shortened 2 of 4 rows by 9,001 tokens in all (longest 9,001)" in said
    assert "1 rows with a count of 0" in said


def test_lengths_are_scaled_before_they_are_shortened(trace):
    path = trace("num_prefill_tokens,num_decode_tokens\n100,10\n")
    lengths = trace_lengths(path, prefill=2, decode=0.5, max_tokens=205)
    assert next(lengths.pairs) == (200, 5)
    assert not any("shortened" in note for note in lengths.notes)


def test_lengths_come_in_upstreams_order_and_then_again(trace):
    path = trace("num_prefill_tokens,num_decode_tokens\n" + "".join(f"{n},1\n" for n in range(1, 11)))
    # pandas.DataFrame({"n": range(1, 11)}).sample(frac=1, random_state=42)
    first_pass = [9, 2, 6, 1, 8, 3, 10, 5, 4, 7]
    drawn = [prompt for prompt, _ in islice(trace_lengths(path, seed=42).pairs, 20)]
    assert drawn[:10] == first_pass
    assert sorted(drawn[10:]) == sorted(first_pass) and drawn[10:] != first_pass
    workload = synthetic(static_arrivals(1), 25, lengths=trace_lengths(path))
    assert [r.num_prompt_tokens for r in workload.requests[:20]] == drawn
    assert any("25 requests from 10 rows: they were used 2.5 times" in note for note in workload.notes)


def test_fixed_lengths():
    assert list(islice(fixed_lengths(4096, 512).pairs, 2)) == [(4096, 512)] * 2
    assert next(fixed_lengths(1, 0).pairs) == (1, 0)


def test_synthetic_requests_stop_at_the_number_or_the_duration():
    workload = synthetic(static_arrivals(0.5), 4)
    assert rows(workload) == [(0.0, 8, 2), (0.5, 8, 2), (1.0, 8, 2), (1.5, 8, 2)]
    assert [r.request_id for r in workload.requests] == ["0", "1", "2", "3"]
    workload = synthetic(static_arrivals(0.5), 100, duration=1.0)
    assert [r.arrival_time for r in workload.requests] == [0.0, 0.5]
    assert any("stopped at duration 1 s after 2 of 100" in note for note in workload.notes)
    workload = synthetic(static_arrivals(0.5), None, duration=2.0)
    assert len(workload.requests) == 4
    with pytest.raises(ValueError, match="num_requests: an integer of at least 1 is needed where there is no duration"):
        synthetic(static_arrivals(0.5), None)
    with pytest.raises(
        ValueError, match="duration: 2 s take more than 10,000,000 requests; request 100,000 arrives at 0 s"
    ):
        synthetic(static_arrivals(0), None, duration=2)
    with pytest.raises(ValueError, match="duration: 1e-200 s take more than"):
        synthetic(static_arrivals(1e-300), None, duration=1e-200)
    with pytest.raises(ValueError, match="duration: 0 is"):
        synthetic(static_arrivals(0.5), 100, duration=0)


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
    workload = replay(traces / "splitwise_conv.csv")
    assert len(workload.requests) == 19_366
    assert rows(workload)[1] == (4.314579, 396, 109)
    lengths = trace_lengths(traces / "sharegpt_8k_filtered_stats_llama2_tokenizer.csv", max_tokens=8192)
    assert lengths.num_rows == 30_731
    assert sum(sum(pair) for pair in islice(lengths.pairs, 30_731)) == 85_393_559  # the file's own num_total_tokens
