"""One benchmark run: replay a workload through one engine or several, and leave its files in a folder of its own."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from sarathi.benchmark.build import requests_of
from sarathi.benchmark.profiling import profiled
from sarathi.benchmark.replicas import LoadRecorder, build_replicas, build_router, route_of
from sarathi.benchmark.system import build_system, check_fit
from sarathi.benchmark.workloads.spec import Workload
from sarathi.clock import WallClock, calendar_stamp
from sarathi.config import BenchmarkConfig, chosen_type, to_yaml
from sarathi.core.plan import SchedulerOutput
from sarathi.engine.engine import Engine, StepRecorder, replay
from sarathi.errors import FlagError, told_if_incomplete
from sarathi.metrics.run_record import RunRecord
from sarathi.metrics.sinks import write_text
from sarathi.replica.load import ReplicaLoad
from sarathi.system import System

logger = logging.getLogger(__name__)
PROGRESS_EVERY = 256  # simulated rounds; a real one takes long enough to be told alone


def run_benchmark(
    config: BenchmarkConfig,
    workload: Workload,
    on_progress: Callable[[int], None] = lambda num_ended: None,
    system: System | None = None,
) -> RunRecord:
    """Replay `workload` under `config`; what comes back is closed, its views are not written.

    Every part is built before anything is written, so a setting that makes no sense (FlagError, one line) leaves
    nothing behind. `on_progress` gets the number of requests that have ended, now and then and at the end. `system`
    is what `build_system(config)` made, where that was done before; it serves one run, as its first replica.
    """
    system = system or build_system(config)
    check_fit(config, system, workload.requests)
    systems = build_replicas(config, system)
    metadata = {**system.metadata(config), "workload": workload.name, "seed": config.seed}
    if len(systems) > 1:
        metadata |= {"num_replicas": len(systems), "routing": chosen_type(config, "routing_config")}
    replica_ids = range(len(systems))
    if not config.metrics_config.write_metrics:
        if config.enable_profiling:
            logger.warning("--enable_profiling has no effect without --metrics_config_write_metrics")
        return _run(config, workload, systems, RunRecord(config, None, metadata, replica_ids), on_progress)
    directory = _make_run_directory(config)
    with told_if_incomplete(directory, "its files that end in .part break off"):
        if config.write_json_trace:
            _write_json_trace(workload, directory / "requests.json")
        record = RunRecord(config, directory, metadata, replica_ids)
        try:
            return _run(config, workload, systems, record, on_progress)
        except BaseException as error:
            record.fail(error)
            raise


def _run(
    config: BenchmarkConfig,
    workload: Workload,
    systems: Sequence[System],
    record: RunRecord,
    on_progress: Callable[[int], None],
) -> RunRecord:
    loads = [ReplicaLoad() for _ in systems]
    engines = [
        _build_engine(system, LoadRecorder(loads[i], record.attach(i, system))) for i, system in enumerate(systems)
    ]
    simulated = systems[0].simulated
    progress_every = PROGRESS_EVERY if simulated else 1
    directory = record.directory if config.enable_profiling else None
    profiling = nullcontext(None) if directory is None else profiled(directory, simulated)

    def on_round(output: SchedulerOutput) -> None:
        if profile_round is not None:
            profile_round()
        if output.step_id % progress_every == progress_every - 1:
            on_progress(record.num_ended)

    requests = requests_of(workload, config.slo_config)
    route = route_of(build_router(config), loads)
    try:
        with profiling as profile_round:
            replay(engines, requests, route=route, time_limit=config.time_limit, on_round=on_round)
    finally:
        for system in systems:
            system.executor.shutdown()
        record.stop()
    record.close([(engine.clock.now(), engine.scheduler.requests.values()) for engine in engines])
    on_progress(record.num_ended)
    return record


def _build_engine(system: System, recorder: StepRecorder) -> Engine:
    if isinstance(system.clock, WallClock):  # it ran while the model was loaded, and is the executor's too
        system.clock.restart()
    return Engine(system.scheduler, system.executor, system.clock, recorder)


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
