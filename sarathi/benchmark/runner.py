"""One benchmark run: replay a workload through an engine, and leave its files in a folder of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from sarathi.benchmark.build import requests_of
from sarathi.benchmark.system import build_system, check_fit
from sarathi.benchmark.workloads.spec import Workload
from sarathi.clock import WallClock, calendar_stamp
from sarathi.config import BenchmarkConfig, to_yaml
from sarathi.core.plan import SchedulerOutput
from sarathi.engine.engine import Engine, replay
from sarathi.errors import FlagError
from sarathi.metrics.chrome_trace import ChromeTrace
from sarathi.metrics.recorder import Recorder
from sarathi.metrics.records import RunData
from sarathi.metrics.sinks import CsvSink, Sink, write_text
from sarathi.system import System

PROGRESS_EVERY = 256  # simulated rounds; a real one takes long enough to be told alone


class RunResult(NamedTuple):
    directory: Path | None  # None where nothing is written
    summary: dict[str, Any]
    data: RunData


def run_benchmark(
    config: BenchmarkConfig,
    workload: Workload,
    on_progress: Callable[[int], None] = lambda num_ended: None,
    system: System | None = None,
) -> RunResult:
    """Replay `workload` under `config`.

    Every part is built before anything is written, so a setting that makes no sense (FlagError, one line) leaves
    nothing behind. `on_progress` gets the number of requests that have ended, now and then and at the end. `system`
    is what `build_system(config)` made, where that was done before; it serves one run.
    """
    system = system or build_system(config)
    check_fit(config, system, workload.requests)
    metadata = {**system.metadata(config), "workload": workload.name, "seed": config.seed}
    if not config.metrics_config.write_metrics:
        return _run(config, workload, system, Recorder([], metadata), on_progress, None)
    directory = _make_run_directory(config)
    with told_if_incomplete(directory, "its files that end in .part break off"):
        if config.write_json_trace:
            _write_json_trace(workload, directory / "requests.json")
        sinks: list[Sink] = [CsvSink(directory)]
        if config.metrics_config.enable_chrome_trace:
            sinks.append(ChromeTrace(directory / "chrome_trace.json"))
        return _run(config, workload, system, Recorder(sinks, metadata), on_progress, directory)


def _run(
    config: BenchmarkConfig,
    workload: Workload,
    system: System,
    recorder: Recorder,
    on_progress: Callable[[int], None],
    directory: Path | None,
) -> RunResult:
    clock = system.clock if system.simulated else WallClock()  # from 0 now, not since the model began to load
    engine = Engine(system.scheduler, system.executor, clock, recorder)
    progress_every = PROGRESS_EVERY if system.simulated else 1

    def on_round(output: SchedulerOutput) -> None:
        if output.step_id % progress_every == progress_every - 1:
            on_progress(recorder.num_ended)

    try:
        replay(engine, requests_of(workload), time_limit=config.time_limit, on_round=on_round)
    finally:
        system.executor.shutdown()
    summary = recorder.close(engine.clock.now(), engine.scheduler.requests.values())
    on_progress(recorder.num_ended)
    return RunResult(directory, summary, recorder.data())


@contextmanager
def told_if_incomplete(path: Path, how: str = "") -> Iterator[None]:
    """Whatever ends the run early says in its last line which folder or file it leaves incomplete, and how."""
    try:
        yield
    except BaseException as error:
        error.add_note("; ".join(filter(None, [f"{path} is incomplete", how])))
        raise


def _make_run_directory(config: BenchmarkConfig) -> Path:
    """`<output_dir>/<timestamp>/` with the config.yaml that gives the same run again."""
    directory = Path(config.output_dir) / calendar_stamp()
    try:
        directory.mkdir(parents=True)
        write_text(directory / "config.yaml", to_yaml(config))
    except OSError as error:
        raise FlagError("output_dir", f"cannot write to {directory} ({error.strerror})") from None
    return directory


def _write_json_trace(workload: Workload, path: Path) -> None:
    """The requests that were sent: arrival in seconds, lengths in tokens."""
    rows = [
        {
            "request_id": spec.request_id,
            "arrived_at": spec.arrival_time,
            "num_prefill_tokens": spec.num_prompt_tokens,
            "num_decode_tokens": spec.num_output_tokens,
        }
        for spec in workload.requests
    ]
    write_text(path, json.dumps(rows))
