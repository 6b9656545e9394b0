"""The statistics of a comparison against known answers, and which runs belong together under which names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sarathi.comparison import bootstrap
from sarathi.comparison.bootstrap import mean_interval, relative_change, relative_change_interval
from sarathi.comparison.comparison import compare_entries, paired_requests
from sarathi.comparison.groups import differing_settings, make_entries
from sarathi.comparison.run import ComparedRun, Workload, workload_differences
from sarathi.metrics.headline import E2E, METRICS, TPOT, TTFT

NO_VALUES = np.empty(0)


@pytest.fixture
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "NUM_RESAMPLES", 1000)


@pytest.mark.parametrize(("n", "low", "high"), [(5, 0.89, 0.96), (10, 0.92, 0.97), (30, 0.93, 0.975)])
def test_interval_of_a_mean_covers_it_as_often_as_it_says(few_resamples, n: int, low: float, high: float) -> None:
    rng = np.random.default_rng(n)
    intervals = [mean_interval(rng.normal(3.0, 2.0, n)) for _ in range(800)]
    covered = np.mean([found.low <= 3.0 <= found.high for found in intervals])
    assert low < covered < high


def test_interval_of_a_change_covers_it_paired_and_unpaired(few_resamples) -> None:
    rng = np.random.default_rng(1)
    for paired in (True, False):
        hits = []
        for _ in range(400):
            load = rng.normal(0, 1, 12)
            before = 10 + load + rng.normal(0, 0.2, 12)
            after = 8 + (load if paired else rng.normal(0, 1, 12)) + rng.normal(0, 0.2, 12)
            found = relative_change_interval(before, after, paired=paired)
            hits.append(found.low <= -20 <= found.high)
        assert 0.91 < np.mean(hits) < 0.985, paired


def test_pairs_beat_independent_samples_where_seeds_matter() -> None:
    load = np.random.default_rng(2).normal(0, 3, 8)
    before, after = 10 + load, 0.9 * (10 + load)
    paired = relative_change_interval(before, after, paired=True)
    unpaired = relative_change_interval(before, after, paired=False)
    assert paired.low == pytest.approx(-10) and paired.high == pytest.approx(-10)
    assert unpaired.high - unpaired.low > 10


def test_changes_that_are_nothing_and_that_are_undefined() -> None:
    values, zeros = np.array([1.1, 2.2, 3.3]), np.zeros(3)
    assert relative_change(values, values.copy()) == 0.0
    assert relative_change_interval(values, values.copy(), paired=True) == (0.0, 0.0)
    assert relative_change(zeros, zeros) == 0.0 and relative_change_interval(zeros, zeros, paired=True) == (0.0, 0.0)
    assert relative_change(zeros, values) is None and relative_change_interval(zeros, values, paired=True) is None
    assert relative_change_interval(np.array([0.0, 1.0]), np.array([1.0, 1.0]), paired=False) is None
    assert mean_interval(np.array([1.0])) is None


def make_run(
    folder: str = "out/a",
    seed: int = 1,
    *,
    e2e: np.ndarray | None = None,
    finished: np.ndarray | None = None,
    arrivals: np.ndarray | None = None,
    summary: dict | None = None,
    **settings: object,
) -> ComparedRun:
    """A run of as many requests as `e2e` has; `finished` tells which of them finished."""
    e2e = np.array([4.0, 2.0, 6.0]) if e2e is None else e2e
    n = len(e2e)
    ids = np.array([f"r{i:03}" for i in range(n)])
    arrivals = np.arange(n) * 0.1 if arrivals is None else arrivals
    lengths = np.full(n, 100.0)
    kept = np.ones(n, dtype=bool) if finished is None else finished
    columns = {"request_id": ids, E2E: e2e, TTFT: e2e / 2, TPOT: e2e / 10, "request_num_prefill_tokens": lengths}
    return ComparedRun(
        path=Path(folder),
        settings={"scheduler": "SARATHI", **settings},
        seeds={"seed": seed},
        summary={E2E: {"mean": float(e2e[kept].mean())}, "num_requests": n, "model": "m", "device": "d"}
        | (summary or {}),
        workload=Workload(ids, arrivals, lengths, lengths),
        finished={name: column[kept] for name, column in columns.items()},
        token_gaps=(NO_VALUES, NO_VALUES),
    )


def labels_of(*runs: ComparedRun) -> list[str]:
    entries = make_entries(runs)
    labels = [entry.label for entry in entries]
    assert len(set(labels)) == len(labels)
    return labels


def test_labels_are_the_fewest_settings_that_tell_runs_apart() -> None:
    chunk, alpha = "scheduler_config.chunk_size", "scheduler_config.alpha"
    assert labels_of(make_run("a"), make_run("b", scheduler="AGING", **{alpha: 150.0})) == ["SARATHI", "AGING"]
    assert labels_of(*(make_run(f"{n}", **{chunk: n, "cache_config.block_size": 16}) for n in (256, 512))) == [
        "chunk_size 256",
        "chunk_size 512",
    ]
    runs = [make_run("a", **{chunk: 256, alpha: 30.0}), make_run("b", **{chunk: 256, alpha: 150.0})]
    assert labels_of(*runs, make_run("c", **{chunk: 512, alpha: 150.0})) == [
        "chunk_size 256 alpha 30.0", "chunk_size 256 alpha 150.0", "chunk_size 512 alpha 150.0",
    ]  # fmt: skip
    types = "request_generator_config.type"
    assert labels_of(make_run("a", **{types: "TRACE"}), make_run("b", **{types: "SHAREGPT"})) == ["TRACE", "SHAREGPT"]
    file = "executor_config.rounds_file"
    two = [make_run("a", **{file: "x/rounds.csv"}), make_run("b", **{file: "y/rounds.csv"})]
    assert labels_of(*two) == ["a", "b"]  # the files' names do not tell them apart
    assert labels_of(make_run("a"), make_run("b", **{file: None, "slo_config.ttft": 0.5})) == ["a", "b"]


def test_seeds_of_a_setting_are_one_row_and_repeated_ones_are_not() -> None:
    runs = [make_run(f"out/{s}{seed}", seed, scheduler=s) for s in ("SARATHI", "AGING") for seed in (1, 2, 3)]
    entries = make_entries(runs)
    assert [(e.label, len(e.runs)) for e in entries] == [("SARATHI", 3), ("AGING", 3)]
    assert differing_settings(entries) == {"scheduler": ["SARATHI", "AGING"], "seed": ["1, 2, 3", "1, 2, 3"]}
    before_and_after = [make_run(f"{where}/{seed}", seed) for where in ("before", "after") for seed in (1, 2)]
    assert [(e.label, len(e.runs)) for e in make_entries(before_and_after)] == [("before", 2), ("after", 2)]
    assert labels_of(make_run("out/first"), make_run("out/again")) == ["first", "again"]
    assert labels_of(make_run("a/run"), make_run("b/run")) == ["a", "b"]


def test_all_runs_of_one_setting_are_a_row_each_and_one_together() -> None:
    entries = make_entries([make_run(f"out/{seed}", seed) for seed in (7, 8)])
    assert [(e.label, len(e.runs)) for e in entries] == [("seed 7", 1), ("seed 8", 1), ("all 2 seeds", 2)]
    comparison = compare_entries(entries, entries[0])
    by_label = {row.label: row for row in comparison.rows if (row.metric, row.statistic) == (E2E, "mean")}
    assert by_label["seed 8"].paired is False and by_label["all 2 seeds"].paired is None
    assert any("seeds differ (8 and 7)" in line for line in comparison.warnings)


def test_workloads_are_compared_by_what_they_hold() -> None:
    run = make_run()
    assert workload_differences(run, make_run("b", scheduler="AGING")) == []
    moved = make_run(arrivals=np.array([0.0, 0.1, 0.7]))
    assert workload_differences(run, moved) == ["arrival times differ (1 of 3 requests, by up to 0.5 s)"]
    longer = workload_differences(run, make_run(e2e=np.ones(5)))
    assert longer == ["number of requests differs (3 and 5)", "request ids differ (3 in common)"]
    sent = run.workload
    unknown = Workload(sent.request_ids, sent.arrival_times, np.array([100.0, 100.0, 109.0]), np.full(3, np.nan))
    found = workload_differences(run, ComparedRun(**{**vars(run), "workload": unknown}))
    assert found == ["prompt lengths differ (1 of 3 requests, by up to 9 tokens)"]


def test_requests_are_paired_by_id_and_only_where_both_finished() -> None:
    before = make_run(e2e=np.array([4.0, 2.0, 6.0, 9.0, 5.0]), finished=np.array([True, True, True, True, False]))
    after = make_run("b", e2e=np.array([3.0, 2.0, 7.0, 1.0, 1.0]), finished=np.array([True, True, True, False, True]))
    found = paired_requests("b", E2E, [(before, after)])
    assert (found.num_requests, found.baseline_mean, found.mean, found.difference) == (3, 4.0, 4.0, 0.0)
    assert found.share_faster == pytest.approx(1 / 3) and found.share_slower == pytest.approx(1 / 3)
    assert found.difference_interval is None and found.share_faster_interval is None  # of one pair of runs
    nothing = make_run("c", e2e=np.ones(5), finished=np.array([False, False, False, False, True]))
    assert paired_requests("c", E2E, [(before, nothing)]) is None


def test_several_pairs_of_runs_give_an_interval_over_runs() -> None:
    pairs = [(make_run(seed=seed), make_run("b", seed, e2e=np.array([3.0, 1.0, 5.0 - seed]))) for seed in (1, 2, 3, 4)]
    found = paired_requests("b", E2E, pairs)
    assert (found.num_requests, found.num_pairs, found.share_faster) == (12, 4, 1.0)
    assert found.share_faster_interval == (1.0, 1.0)
    assert found.difference == pytest.approx(-(1 + 1 + 3.5) / 3)
    assert found.difference_interval.low < found.difference < found.difference_interval.high < -1


def test_changes_are_over_shared_seeds_where_the_smaller_side_has_all_of_them() -> None:
    base = [make_run(f"out/b{seed}", seed, e2e=np.full(3, 10.0 * seed)) for seed in (1, 2, 3)]
    other = [make_run(f"out/o{seed}", seed, e2e=np.full(3, 9.0 * seed), scheduler="AGING") for seed in (1, 2)]
    entries = make_entries([*base, *other])
    comparison = compare_entries(entries, entries[0])
    row = comparison.row("AGING", METRICS[0])
    assert (row.value, row.paired, row.num_runs, row.num_pairs) == (13.5, True, 2, 2)
    assert row.delta_percent == pytest.approx(-10) and row.delta_ci_low == pytest.approx(-10)
    assert any("over the 2 that both have of 2 and 3 seeds" in line for line in comparison.warnings)
    strangers = make_entries([*base, make_run("out/s9", 9, scheduler="SPF"), make_run("out/s1", 1, scheduler="SPF")])
    assert compare_entries(strangers, strangers[0]).row("SPF", METRICS[0]).paired is False
