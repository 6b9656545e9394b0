"""One benchmark run: replay a workload through one engine or several, and leave its files in a folder of its own."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sarathi.benchmark.build import requests_of
from sarathi.benchmark.profiling import profiled
from sarathi.benchmark.replicas import LoadRecorder, build_replicas, build_router, route_of
from sarathi.benchmark.system import build_system, check_fit
from sarathi.benchmark.workloads.spec import Workload
from sarathi.clock import WallClock, calendar_stamp
from sarathi.config import BenchmarkConfig, chosen_type, to_yaml
from sarathi.core.plan import SchedulerOutput
from sarathi.engine.engine import Engine, replay
from sarathi.errors import FlagError
from sarathi.metrics.chrome_trace import ChromeTrace
from sarathi.metrics.instruments import Instruments
from sarathi.metrics.merge import merge_runs, merge_tables
from sarathi.metrics.recorder import Recorder
from sarathi.metrics.records import RunData
from sarathi.metrics.sinks import CsvSink, Sink, write_end, write_text
from sarathi.metrics.summary import summarize
from sarathi.replica.load import ReplicaLoad
from sarathi.system import System

if TYPE_CHECKING:
    from sarathi.metrics.wandb_follower import WandbFollower

logger = logging.getLogger(__name__)
PROGRESS_EVERY = 256  # simulated rounds; a real one takes long enough to be told alone


class RunResult(NamedTuple):
    directory: Path | None  # None where nothing is written
    summary: dict[str, Any]
    data: RunData
    wandb: WandbFollower | None = None  # to be finished when the run's views are written


def run_benchmark(
    config: BenchmarkConfig,
    workload: Workload,
    on_progress: Callable[[int], None] = lambda num_ended: None,
    system: System | None = None,
) -> RunResult:
    """Replay `workload` under `config`.

    Every part is built before anything is written, so a setting that makes no sense (FlagError, one line) leaves
    nothing behind. `on_progress` gets the number of requests that have ended, now and then and at the end. `system`
    is what `build_system(config)` made, where that was done before; it serves one run, as its first replica.
    """
    system = system or build_system(config)
    check_fit(config, system, workload.requests)
    systems = build_replicas(config, system)
    metadata = {**system.metadata(config), "workload": workload.name, "seed": config.seed}
    if not config.metrics_config.write_metrics:
        if config.enable_profiling:
            logger.warning("--enable_profiling has no effect without --metrics_config_write_metrics")
        return _run(config, workload, systems, metadata, on_progress, None)
    directory = _make_run_directory(config)
    with told_if_incomplete(directory, "its files that end in .part break off"):
        if config.write_json_trace:
            _write_json_trace(workload, directory / "requests.json")
        with _followed(config, directory, metadata) as follower:
            return _run(config, workload, systems, metadata, on_progress, directory)._replace(wandb=follower)


def _run(
    config: BenchmarkConfig,
    workload: Workload,
    systems: Sequence[System],
    metadata: Mapping[str, object],
    on_progress: Callable[[int], None],
    directory: Path | None,
) -> RunResult:
    folders = _folders(directory, len(systems))
    recorders = [Recorder(_sinks(config, folder), metadata, i) for i, folder in enumerate(folders)]
    instruments = Instruments(config.metrics_config, directory)
    engines, loads = _build_engines(systems, recorders, instruments)
    progress_every = PROGRESS_EVERY if systems[0].simulated else 1
    profiling = (
        profiled(directory, systems[0].simulated) if config.enable_profiling and directory else nullcontext(None)
    )

    def on_round(output: SchedulerOutput) -> None:
        if profile_round is not None:
            profile_round()
        if output.step_id % progress_every == progress_every - 1:
            on_progress(sum(recorder.num_ended for recorder in recorders))

    requests = requests_of(workload, config.slo_config)
    try:
        with profiling as profile_round:
            if len(engines) == 1:
                replay(engines, requests, time_limit=config.time_limit, on_round=on_round)
            else:
                route = route_of(build_router(config), loads)
                replay(engines, requests, route=route, time_limit=config.time_limit, on_round=on_round)
    finally:
        for system in systems:
            system.executor.shutdown()
        instruments.stop()
    extra = instruments.close()
    summaries = [
        recorder.close(engine.clock.now(), engine.scheduler.requests.values(), extra if len(engines) == 1 else {})
        for engine, recorder in zip(engines, recorders, strict=True)
    ]
    on_progress(sum(recorder.num_ended for recorder in recorders))
    parts = [recorder.data() for recorder in recorders]
    if len(parts) == 1:
        return RunResult(directory, summaries[0], parts[0])
    data = merge_runs(parts, {**metadata, "num_replicas": len(parts), "routing": chosen_type(config, "routing_config")})
    summary = {**summarize(data), **extra, "replicas": summaries}
    if directory is not None:
        merge_tables([folder for folder in folders if folder is not None], directory)
        write_end(directory, summary, data)
    return RunResult(directory, summary, data)


def _folders(directory: Path | None, num_replicas: int) -> list[Path | None]:
    """Where each replica's files go: into the run's folder, or where there are several, into folders in it."""
    if directory is None or num_replicas == 1:
        return [directory] * num_replicas
    return [directory / f"replica_{i}" for i in range(num_replicas)]


def _sinks(config: BenchmarkConfig, folder: Path | None) -> list[Sink]:
    if folder is None:
        return []
    sinks: list[Sink] = [CsvSink(folder)]
    if config.metrics_config.enable_chrome_trace:
        sinks.append(ChromeTrace(folder / "chrome_trace.json"))
    return sinks


def _build_engines(
    systems: Sequence[System], recorders: Sequence[Recorder], instruments: Instruments
) -> tuple[list[Engine], list[ReplicaLoad]]:
    engines, loads = [], []
    for i, (system, recorder) in enumerate(zip(systems, recorders, strict=True)):
        clock = system.clock if system.simulated else WallClock()  # from 0 now, not since the model began to load
        load = ReplicaLoad()
        told = instruments.attach(recorder, system, i)
        if len(systems) > 1:
            told = LoadRecorder(load, told)
        engines.append(Engine(system.scheduler, system.executor, clock, told))
        loads.append(load)
    return engines, loads


@contextmanager
def _followed(
    config: BenchmarkConfig, directory: Path, metadata: Mapping[str, object]
) -> Iterator[WandbFollower | None]:
    """A process that copies the run to wandb, where a project is named; told if the run fails."""
    if config.metrics_config.wandb_project is None:
        yield None
        return
    from sarathi.metrics.wandb_follower import WandbFollower

    follower = WandbFollower(directory, config, metadata)
    try:
        yield follower
    except BaseException as error:
        error.add_note(follower.finish(complete=False))
        raise


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
