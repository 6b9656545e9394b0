"""One probe: a run of a job at one rate, kept in a folder, and the latency quantiles read off it.

A probe's folder is `<job>/<rate>/`: in it the run's own folder and, written last of all, probe.json.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sarathi.benchmark.build import build_workload
from sarathi.benchmark.capacity_search.entries import rate_setting
from sarathi.benchmark.capacity_search.latencies import Latencies
from sarathi.benchmark.capacity_search.options import Slo
from sarathi.benchmark.runner import run_benchmark
from sarathi.benchmark.system import build_system
from sarathi.benchmark.workloads.spec import Workload
from sarathi.config import BenchmarkConfig, to_dict
from sarathi.errors import shown
from sarathi.metrics.run_folder import REQUEST_TEXTS, read_table
from sarathi.metrics.sinks import write_json

logger = logging.getLogger(__name__)

REUSED = "from an earlier search"
FORMAT = 1  # raise it when what probe.json or a run's tables hold comes to mean something else
# Settings without an influence on what a run measures.
_NO_MATTER = ("output_dir", "log_level", "write_json_trace", "metrics_config")


class Probe(NamedTuple):
    """`figures`: seconds by name of QUANTITIES, inf where they lie among unfinished requests, None without samples."""

    rate: float
    run: Path
    counts: dict[str, int]  # of requests: finished, ignored, unfinished at the time limit, not_sent before it
    figures: dict[str, float | None]
    note: str = ""  # that the run was there already, or why one that was there could not be taken


def probe_config(config: BenchmarkConfig, rate: float, folder: Path) -> BenchmarkConfig:
    """`config` at `rate` requests per second, its runs in `folder`.

    Nothing else changes, seeds least of all: every rate has the same requests, and arrivals that only scale.
    """
    generator = config.request_generator_config
    intervals = getattr(generator, "interval_generator_config")  # noqa: B009  # not every generator has one
    name = rate_setting(type(intervals))
    assert name is not None, intervals
    intervals = dataclasses.replace(intervals, **{name: 1 / rate if name == "interval" else rate})
    generator = dataclasses.replace(generator, **{"interval_generator_config": intervals})
    return dataclasses.replace(config, request_generator_config=generator, output_dir=str(folder))


def identity(config: BenchmarkConfig) -> dict[str, Any]:
    """All that a run's latencies follow from, as JSON has it: its settings, and the state of the files they name."""
    settings = {key: value for key, value in to_dict(config).items() if key not in _NO_MATTER}
    files = {name: state for name in sorted(_texts(settings)) if (state := _file_state(name))}
    return json.loads(json.dumps({"format": FORMAT, "files": files, "settings": settings}))


def digest(value: object) -> str:
    """Eight hexadecimal digits that differ where the JSON of `value` does."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def run_probe(
    config: BenchmarkConfig,
    rate: float,
    targets: Sequence[Slo],
    on_progress: Callable[[int], None] = lambda num_ended: None,
    parts: Any = None,
) -> Probe:
    """The probe in `config.output_dir`: of the run that is there if it has the same identity, else of a new one.

    What a run that was cut short left there is removed. `parts` is a loaded model, where a real one runs.
    Raises FlagError for a setting that makes no sense, and ValueError where no request was served.
    """
    folder = Path(config.output_dir)
    what = identity(config)
    probe = _kept(folder, rate, what, targets)
    if isinstance(probe, Probe):
        return probe
    why = probe
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
    write_json(folder / "probe.json", {**content, "identity": what})
    return probe._replace(note=why)


def _kept(folder: Path, rate: float, what: Mapping[str, Any], targets: Sequence[Slo]) -> Probe | str:
    """The probe of the run in `folder`; else why the one that is there cannot be taken, empty where there is none."""
    path = folder / "probe.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["identity"] != what:
            return f"run again, as settings changed ({_difference(content['identity'], what)})"
        probe = _probe(rate, folder / content["run"], content, what["settings"]["time_limit"], targets)
        return probe._replace(note=REUSED)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"run again, as {path.name} cannot be used ({error})"


def _difference(stored: Any, wanted: Any, path: str = "") -> str:
    """The first setting in which the two differ, and how."""
    if isinstance(stored, dict) and isinstance(wanted, dict):
        for key in {**stored, **wanted}:
            if stored.get(key) != wanted.get(key):
                return _difference(stored.get(key), wanted.get(key), f"{path}.{key}" if path else key)
    return f"{path} was {shown(stored)}, is {shown(wanted)}"


def _remove_incomplete(folder: Path) -> None:
    """Runs in `folder` that were cut short: what they lack is the summary."""
    for run in folder.iterdir() if folder.is_dir() else ():
        if run.is_dir() and not (run / "summary.json").exists():
            logger.info("removing %s, which was cut short", run)
            shutil.rmtree(run)


def _texts(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set().union(*map(_texts, value.values()))
    return {value} if isinstance(value, str) and value else set()


def _file_state(name: str) -> list[int] | None:
    """Size and time of the last change of the file `name`, or of config.json in the folder; None if there is none."""
    path = os.path.join(name, "config.json") if os.path.isdir(name) else name
    if not os.path.isfile(path):
        return None
    state = os.stat(path)
    return [state.st_size, state.st_mtime_ns]


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
    requests = read_table(run / "requests.csv", REQUEST_TEXTS)
    gaps = read_table(run / "token_gaps.csv")
    end = math.inf if time_limit is None else time_limit
    latencies = Latencies.of(requests, gaps, np.array(cut["late_arrivals"], dtype=float), end)
    counts = {word: int(cut[f"num_{word}"]) for word in ("finished", "ignored", "unfinished", "not_sent")}
    return Probe(rate, run, counts, {target.quantity: latencies.quantile(target) for target in targets})
