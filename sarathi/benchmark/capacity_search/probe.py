"""One probe: a run of a job at one rate, kept in a folder, and the latency quantiles read off it.

A probe's folder is `<job>/<rate>-<digest of its identity>/`: in it the run's own folder and, written last of all,
probe.json. So probes of other settings, devices or code lie beside each other.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sarathi.benchmark.build import build_workload
from sarathi.benchmark.capacity_search.entries import rate_setting
from sarathi.benchmark.capacity_search.identity import digest, identity
from sarathi.benchmark.capacity_search.latencies import Latencies
from sarathi.benchmark.capacity_search.options import Slo
from sarathi.benchmark.runner import run_benchmark
from sarathi.benchmark.system import build_system
from sarathi.benchmark.workloads.spec import Workload
from sarathi.config import BenchmarkConfig
from sarathi.errors import one_line
from sarathi.metrics.run_folder import read_run
from sarathi.metrics.sinks import write_json

logger = logging.getLogger(__name__)

REUSED = "from an earlier search"


class Probe(NamedTuple):
    """`figures`: seconds by name of QUANTITIES, inf where they lie among unfinished requests, None without samples."""

    rate: float
    run: Path
    counts: dict[str, int]  # of requests: finished, ignored, unfinished at the time limit, not_sent before it
    figures: dict[str, float | None]
    note: str = ""  # that the run was there already, or why one that was there could not be taken

    def holds(self, slos: Sequence[Slo]) -> bool:
        """Whether every objective does; each one's quantile is among the figures."""
        return all(slo.holds(self.figures[slo.quantity]) for slo in slos)


def probe_config(config: BenchmarkConfig, rate: float, folder: Path) -> BenchmarkConfig:
    """`config` at `rate` requests per second, its runs in the probe's own folder in `folder`.

    Nothing else changes, seeds least of all: every rate has the same requests, and arrivals that only scale.
    """
    generator = config.request_generator_config
    intervals = getattr(generator, "interval_generator_config")  # noqa: B009  # not every generator has one
    name = rate_setting(type(intervals))
    assert name is not None, intervals
    intervals = dataclasses.replace(intervals, **{name: 1 / rate if name == "interval" else rate})
    generator = dataclasses.replace(generator, **{"interval_generator_config": intervals})
    config = dataclasses.replace(config, request_generator_config=generator)
    return dataclasses.replace(config, output_dir=str(folder / f"{rate!r}-{digest(identity(config))}"))


def run_probe(
    config: BenchmarkConfig,
    rate: float,
    targets: Sequence[Slo],
    on_progress: Callable[[int], None] = lambda num_ended: None,
    parts: Any = None,
) -> Probe:
    """The probe in `config.output_dir`: of the run that is there if it can be read, else of a new one.

    What a run that was cut short left there is removed. `parts` is a loaded model, where a real one runs.
    Raises FlagError for a setting that makes no sense, and ValueError where no request was served.
    """
    folder = Path(config.output_dir)
    kept = _kept(folder, rate, config.time_limit, targets)
    if isinstance(kept, Probe):
        return kept
    _remove_incomplete(folder)
    system = build_system(config, parts)
    workload = build_workload(config, system)
    result = run_benchmark(config, workload, on_progress, system)
    assert result.directory is not None
    result.write_views()
    cut = _cut_off(result.summary, workload, config.time_limit)
    if not result.summary["num_finished"] and not cut["num_unfinished"]:
        raise ValueError(f"at {rate:g} requests per second {_why_nothing(result.summary, config)}")
    probe = _probe(rate, result.directory, cut, config.time_limit, targets)
    quantiles = {target.quantity: target.quantile for target in targets}
    figures = {name: "inf" if value == math.inf else value for name, value in probe.figures.items()}
    content = {"rate": rate, "run": result.directory.name, **cut, "quantiles": quantiles, "figures": figures}
    write_json(folder / "probe.json", {**content, "identity": identity(config)})
    return probe._replace(note=kept)


def _kept(folder: Path, rate: float, time_limit: float | None, targets: Sequence[Slo]) -> Probe | str:
    """The probe of the run in `folder`; else why the one that is there cannot be taken, empty where there is none."""
    try:
        content = json.loads((folder / "probe.json").read_text(encoding="utf-8"))
        return _probe(rate, folder / content["run"], content, time_limit, targets)._replace(note=REUSED)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"run again, as what an earlier search left cannot be used ({one_line(str(error))})"


def _remove_incomplete(folder: Path) -> None:
    """Runs in `folder` that were cut short: what they lack is the summary."""
    for run in folder.iterdir() if folder.is_dir() else ():
        if run.is_dir() and not (run / "summary.json").exists():
            logger.info("removing %s, which was cut short", run)
            shutil.rmtree(run)


def _cut_off(summary: Mapping[str, Any], workload: Workload, time_limit: float | None) -> dict[str, Any]:
    """What the run's tables do not say: `late_arrivals`, the times of requests that arrived in its last round and were
    not taken note of any more, and how many requests would have arrived later still."""
    limit = math.inf if time_limit is None else time_limit
    arrivals = [spec.arrival_time for spec in workload.requests[summary["num_requests"] :]]
    late = [arrival for arrival in arrivals if arrival <= limit]
    num_unfinished = summary["num_unfinished"] + summary["num_aborted"] + len(late)
    return {
        "num_finished": summary["num_finished"],
        "num_ignored": summary["num_ignored"],
        "num_unfinished": num_unfinished,
        "num_not_sent": len(arrivals) - len(late),
        "late_arrivals": late,
    }


def _why_nothing(summary: Mapping[str, Any], config: BenchmarkConfig) -> str:
    if summary["num_ignored"]:
        return f"all {summary['num_ignored']:,} requests were ignored; {summary['first_ignored']}"
    return f"no request arrives before the time limit of {config.time_limit:g} s"


def _probe(rate: float, run: Path, cut: Mapping[str, Any], time_limit: float | None, targets: Sequence[Slo]) -> Probe:
    """Read off the run's files. Raises ValueError where they do not belong together or are cut."""
    files = read_run(run)
    end = math.inf if time_limit is None else time_limit
    latencies = Latencies.of(files.requests, files.token_gaps, np.array(cut["late_arrivals"], dtype=float), end)
    counts = {word: int(cut[f"num_{word}"]) for word in ("finished", "ignored", "unfinished", "not_sent")}
    return Probe(rate, run, counts, {target.quantity: latencies.quantile(target) for target in targets})
