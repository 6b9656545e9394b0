"""Small runs whose rounds, operators and answers are looked at."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sarathi.benchmark.build import build_workload, requests_of
from sarathi.benchmark.system import build_system
from sarathi.clock import WallClock, host_time
from sarathi.config import BenchmarkConfig, parse_args
from sarathi.core.plan import SchedulerOutput, StepResult
from sarathi.engine.engine import Engine, replay
from sarathi.metrics.instruments import Instruments
from sarathi.request import Request
from sarathi.system import System

TINY_LOAD = (
    "--request_generator_config_type=SYNTHETIC",
    "--synthetic_request_generator_config_num_requests=8",
    "--fixed_request_length_generator_config_prefill_tokens=40",
    "--fixed_request_length_generator_config_decode_tokens=6",
    "--poisson_request_interval_generator_config_qps=200",
    "--sarathi_scheduler_config_chunk_size=64",
)
OPERATORS = "--metrics_config_enable_op_level_metrics"
CPU_OPERATORS = "--metrics_config_enable_cpu_op_level_metrics"
OUTPUTS = "--metrics_config_enable_request_outputs"


class Rounds:
    """A recorder that keeps the results, and the host's time spent on scheduling."""

    def __init__(self) -> None:
        self.results: list[StepResult] = []
        self.chunks: list[tuple[float, list[int]]] = []
        self.ended: list[Request] = []
        self.schedule_times: list[float] = []

    def on_step(
        self, output: SchedulerOutput, result: StepResult, finished: list[Request], now: float, schedule_time: float
    ) -> None:
        self.results.append(result)
        self.chunks.append((now, [num_tokens for _, num_tokens in output.prefills]))
        self.schedule_times.append(schedule_time)
        self.ended += finished

    def on_ignored(self, request: Request) -> None:
        self.ended.append(request)

    def on_aborted(self, request: Request) -> None:
        self.ended.append(request)


class Replayed(NamedTuple):
    rounds: Rounds
    summary: dict[str, Any]
    system: System
    wall: float  # host seconds


def replayed(config: BenchmarkConfig, directory: Path | None, system: System | None = None) -> Replayed:
    system = system or build_system(config)
    rounds, instruments = Rounds(), Instruments(config.metrics_config, directory)
    workload = build_workload(config, system)
    clock = system.clock if system.simulated else WallClock()
    engine = Engine(system.scheduler, system.executor, clock, instruments.attach(rounds, system, replica_id=3))
    started = host_time()
    replay([engine], requests_of(workload, config.slo_config))
    wall = host_time() - started
    return Replayed(rounds, instruments.close(), system, wall)


def table(path: Path) -> tuple[list[str], np.ndarray]:
    """Names of the operators, and their seconds, a row a round; the keys are checked."""
    with path.open() as file:
        header, *rows = list(csv.reader(file))
    assert header[:2] == ["step_id", "replica_id"] and {row[1] for row in rows} == {"3"}
    assert [int(row[0]) for row in rows] == list(range(len(rows)))
    return header[2:], np.array([[float(cell) for cell in row[2:]] for row in rows])


def lines(path: Path) -> dict[str, dict[str, Any]]:
    return {line["request_id"]: line for line in map(json.loads, path.read_text().splitlines())}


SIZES: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}


def write_models(folder: Path) -> Path:
    """Folders of a dense model and of one with experts, without weights."""
    for family in ("qwen3", "mixtral"):
        (folder / family).mkdir()
        (folder / family / "config.json").write_text(json.dumps(SIZES | {"model_type": family}))
    return folder


def local(models: Path, family: str, *flags: str) -> BenchmarkConfig:
    return parse_args(
        [
            *TINY_LOAD,
            "--executor_config_type=LOCAL",
            f"--model_config_model={models / family}",
            "--model_config_load_format=dummy",
            "--cache_config_num_gpu_blocks=200",
            "--local_executor_config_num_threads=1",
            *flags,
        ]
    )
