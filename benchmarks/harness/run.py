"""Runs cases, every one with every seed, through sarathi's public settings, and keeps what a table measures of them."""

from __future__ import annotations

import logging
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from tqdm import tqdm

from benchmarks.harness.backends import flags_of, stretches
from benchmarks.harness.cases import Case
from benchmarks.harness.options import Options
from benchmarks.harness.statistics import Mean, change, mean_of
from sarathi.benchmark.build import build_workload
from sarathi.benchmark.runner import run_benchmark
from sarathi.benchmark.system import build_system
from sarathi.config import parse_args
from sarathi.errors import InputError
from sarathi.metrics.run_folder import read_run
from sarathi.metrics.run_record import RunRecord
from sarathi.metrics.wandb_follower import INCOMPLETE

Figures = dict[str, Any]  # numbers, or arrays; the same names for every case of a table
Measure = Callable[[RunRecord], Figures]  # the record's folder is there until it returns

logger = logging.getLogger(__name__)

ROOT = Path(__file__).parents[2]
T = TypeVar("T")
R = TypeVar("R")

QUIET = ("--no-metrics_config_plots", "--no-metrics_config_report", "--log_level=error")


def latencies(record: RunRecord) -> Figures:
    """What stands in every table: seconds, and milliseconds for the time between a request's tokens."""
    e2e, ttft = record.summary["request_e2e_time"], record.summary["prefill_e2e_time"]
    return {
        "mean_e2e_s": e2e["mean"],
        "p95_e2e_s": e2e["p95"],
        "mean_ttft_s": ttft["mean"],
        "p95_ttft_s": ttft["p95"],
        "itl_p99_ms": 1e3 * record.summary["decode_token_execution_plus_preemption_time"]["p99"],
        "execution_s": record.summary["request_execution_time"]["mean"],
        "waiting_s": record.summary["request_waiting_time"]["mean"],
        "num_finished": record.summary["num_finished"],
    }


@dataclass(frozen=True)
class Runs:
    """The figures of all cases, by case and seed; `notes` say how a load was scaled."""

    cases: Sequence[Case]
    seeds: Sequence[int]
    figures: Sequence[Sequence[Figures]]
    notes: Sequence[str] = field(default=())

    def select(self, **labels: object) -> list[Case]:
        """The cases with these labels, in order."""
        return [case for case in self.cases if labels.items() <= dict(case.labels).items()]

    def find(self, **labels: object) -> Case:
        """The one case with these labels."""
        (case,) = self.select(**labels)
        return case

    def of(self, case: Case) -> Sequence[Figures]:
        """Figures by seed."""
        return next(figures for other, figures in zip(self.cases, self.figures, strict=True) if other is case)

    def values(self, case: Case, figure: str) -> list[float]:
        """One figure by seed."""
        return [figures[figure] for figures in self.of(case)]

    def mean(self, case: Case, figure: str) -> Mean:
        """Over seeds."""
        return mean_of(self.values(case, figure))

    def change(self, before: Case, after: Case, figure: str) -> Mean:
        """Of `after` against `before`, percent, paired by seed."""
        return change(self.values(before, figure), self.values(after, figure))

    def rows(self) -> list[dict[str, Any]]:
        """A row a run, for a CSV file: labels, seed and the figures that are numbers."""
        return [
            {**case.labels, "seed": seed, **{name: value for name, value in figures.items() if _is_number(value)}}
            for case, by_seed in zip(self.cases, self.figures, strict=True)
            for seed, figures in zip(self.seeds, by_seed, strict=True)
        ]


def finished_requests(record: RunRecord, *columns: str) -> dict[str, np.ndarray]:
    """Columns of requests.csv, of finished requests, in the order of their ids, so that runs can be paired."""
    assert record.directory is not None
    requests = read_run(record.directory, ("request_id", "status", *columns)).requests
    finished = requests["status"] == "finished"
    order = np.argsort(requests["request_id"][finished].astype(int))
    return {name: requests[name][finished][order] for name in ("request_id", *columns)}


def run_cases(table: str, cases: Sequence[Case], options: Options, measure: Measure = latencies) -> Runs:
    """Run every case with every seed. `measure` is a function of a module, so that other processes find it."""
    factors, notes = stretches(cases, _serve) if options.backend == "cpu" else ({}, [])
    if options.backend == "cpu":
        notes += [
            f"{w.name}: reduced by {' '.join(w.reduced)}" for w in {c.workload.name: c.workload for c in cases}.values()
        ]
    jobs = [
        _Job(table, i, seed, tuple(flags_of(case, options, factors)), _tags(case, options), options, measure)
        for i, case in enumerate(cases)
        for seed in options.seeds
    ]
    n = len(options.seeds)
    for job in jobs[::n]:
        parse_args([*job.flags, *QUIET])  # a flag that makes no sense is told before anything runs
    notes.insert(0, _setup(cases[0], jobs, options))
    print(f"{table}: {len(jobs)} runs ...", file=sys.stderr, flush=True)
    results = in_processes(_Job.run, jobs, options.processes)
    figures, lines = zip(*tqdm(results, table, len(jobs), unit="run", leave=False, disable=None), strict=True)
    tell_of_wandb([line for of_run in lines for line in of_run])
    return Runs(cases, options.seeds, [figures[i * n : (i + 1) * n] for i in range(len(cases))], notes)


def tell_of_wandb(lines: Sequence[str]) -> None:
    """Where the first run is recorded, and how many are not in full; nothing without wandb."""
    if lines:
        print(f"the first of {len(lines)} runs: {lines[0]}", file=sys.stderr)
    if lost := [line for line in lines if line.startswith(INCOMPLETE)]:
        logger.warning("%d of %d runs are not in wandb in full; the first: %s", len(lost), len(lines), lost[0])


def _setup(first: Case, jobs: Sequence[_Job], options: Options) -> str:
    """What ran, so that a reader can run it without these scripts."""
    model = {"sim": f"Qwen3-8B on a simulated {first.device}", "cpu": "SmolLM2-135M", "cuda": "Qwen3-8B"}
    flags = " ".join([*jobs[0].flags, f"--seed={jobs[0].seed}"]).replace(f"{ROOT}/", "")
    seeds = ", ".join(map(str, options.seeds))
    return (
        f"{model[options.backend]} where nothing else is said; seeds {seeds}; the first of {len(jobs)} runs: "
        f"`python -m sarathi.benchmark.main {flags}`"
    )


@dataclass(frozen=True)
class _Job:
    table: str
    case: int
    seed: int
    flags: tuple[str, ...]
    tags: str
    options: Options
    measure: Measure

    def run(self) -> tuple[Figures, list[str]]:
        name = f"{self.table}-{self.case:03}-{self.seed}"
        with tempfile.TemporaryDirectory() as scratch:
            # wandb's own files, where it is offline, are in the run's folder.
            keep = self.options.keep_runs or self.options.wandb_project is not None
            directory = self.options.directory / "runs" / name if keep else scratch
            try:
                record = _run([*self.flags, f"--seed={self.seed}", f"--output_dir={directory}", *self._wandb(name)])
            except InputError as error:  # of a kind that comes through to another process
                raise InputError(str(error)) from None
            return self.measure(record), record.finish_wandb()

    def _wandb(self, name: str) -> list[str]:
        if self.options.wandb_project is None:
            return []
        return [
            f"--metrics_config_wandb_project={self.options.wandb_project}",
            f"--metrics_config_wandb_group={self.table}",
            f"--metrics_config_wandb_run_name={name}",
            f"--metrics_config_wandb_tags={self.tags}",
        ]


def _run(flags: Sequence[str]) -> RunRecord:
    config = parse_args([*flags, *QUIET])
    system = build_system(config)
    return run_benchmark(config, build_workload(config, system), system=system)


def _serve(flags: list[str]) -> tuple[int, float]:
    summary = _run([*flags, "--seed=1", "--no-metrics_config_write_metrics"]).summary
    return summary["num_finished"], summary["makespan"]


def in_processes(function: Callable[[T], R], jobs: Sequence[T], num_processes: int) -> Iterator[R]:
    """Results in the order of the jobs, whatever order they end in."""
    if num_processes == 1:
        yield from map(function, jobs)
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(min(num_processes, len(jobs)), context, initializer=_end_with_parent) as pool:
        yield from pool.map(function, jobs)


def _end_with_parent() -> None:
    """Have this process end when its parent is gone, however that was ended."""
    parent = parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (parent.join(), signal.raise_signal(signal.SIGTERM)), daemon=True).start()


def _tags(case: Case, options: Options) -> str:
    """What wandb's runs are told apart by: the backend and each label."""
    return ",".join(
        [options.backend, *(f"{name} {value}".replace(",", "")[:64] for name, value in case.labels.items())]
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
