"""A run on workers of Ray that is broken off, whoever is killed: how it ends, how soon, and that no process is left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

import psutil

from tests.processes import heed_ctrl_c

pytestmark = pytest.mark.slow
CONFIG = {
    "model_type": "llama", "vocab_size": 199, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip
FLAGS = (
    "--executor_config_type=RAY", "--ray_executor_config_device=cpu", "--model_config_load_format=dummy",
    "--parallel_config_pipeline_parallel_size=2", "--cache_config_num_gpu_blocks=200",
    "--request_generator_config_type=SYNTHETIC", "--synthetic_request_generator_config_num_requests=100000",
    "--fixed_request_length_generator_config_prefill_tokens=100", "--no-metrics_config_write_metrics",
    "--ray_executor_config_timeout=20",
)  # fmt: skip
RANK = re.compile(r"system: rank (\d+) \(.*process (\d+) on ")
BEGUN = re.compile(r"workload: prompts are random")


class Run:
    """A benchmark that would take hours, and its lines as they come."""

    def __init__(self, folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps(CONFIG))
        environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sarathi.benchmark.main", f"--model_config_model={folder}", *FLAGS],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            preexec_fn=heed_ctrl_c,
        )
        self.lines: Queue[str] = Queue()
        self.told: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))

    def until(self, pattern: re.Pattern[str]) -> re.Match[str]:
        while True:
            line = self.lines.get(timeout=120)
            self.told.append(line)
            if match := pattern.search(line):
                return match

    def end(self, seconds: float) -> tuple[int, list[str]]:
        """Exit status, and the lines that came since the last `until`."""
        status = self.process.wait(seconds)
        time.sleep(0.2)
        return status, list(self.lines.queue)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.wait()


def family(run: Run) -> list[psutil.Process]:
    return psutil.Process(run.process.pid).children(recursive=True)


def left(processes: list[psutil.Process], seconds: float) -> list[str]:
    _, alive = psutil.wait_procs(processes, seconds)
    return [process.name() for process in alive if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_that_is_killed_ends_the_run_with_one_line_that_names_it(run: Run, rank: int) -> None:
    found = [run.until(RANK) for _ in range(2)]
    run.until(BEGUN)
    time.sleep(2.0)
    processes = family(run)
    os.kill(int(found[rank].group(2)), signal.SIGKILL)
    status, lines = run.end(10.0)
    assert status == 1
    last = [line for line in lines if line and "requests:" not in line]
    assert len(last) == 1 and last[0].startswith(f"error: rank {rank} (stage {rank}, tensor rank 0; process "), lines
    assert left(processes, 10.0) == []


def errors(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith(("error:", "Traceback"))]


@pytest.mark.parametrize(
    ("name", "said"), [("gcs_server", r"Ray's GCS at [\d.:]+ died"), ("raylet", r"Ray's raylet on [\d.]+ died")]
)
def test_a_part_of_ray_that_is_killed_ends_the_run_with_one_line_that_names_it(run: Run, name: str, said: str) -> None:
    running(run)
    processes = family(run)
    next(process for process in processes if process.name() == name).kill()
    status, lines = run.end(20.0)
    (line,) = errors(lines)
    assert status == 1 and re.fullmatch(f"error: {said}", line), lines
    assert left(processes, 10.0) == []


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_that_is_silent_is_named_and_ended_with_the_others(run: Run, rank: int) -> None:
    found = [run.until(RANK) for _ in range(2)]
    running(run)
    processes = family(run)
    os.kill(int(found[rank].group(2)), signal.SIGSTOP)
    status, lines = run.end(40.0)
    (line,) = errors(lines)
    assert status == 1 and re.match(rf"error: no answer in 20 seconds: rank {rank} \([^)]*\)$", line), lines
    assert left(processes, 10.0) == []


def loading(run: Run) -> None:
    run.until(re.compile("^RAY EXECUTOR"))
    wait_for(lambda: any("RayWorker" in process.name() for process in family(run)))


def running(run: Run) -> None:
    run.until(BEGUN)
    time.sleep(2.0)


def starting(run: Run) -> None:
    run.until(re.compile("^RAY EXECUTOR"))
    wait_for(lambda: any(process.name() == "gcs_server" for process in family(run)))


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it did not come to that")


def stopped(run: Run) -> None:
    """One worker is alive and does nothing."""
    rank_1 = [run.until(RANK) for _ in range(2)][1]
    running(run)
    os.kill(int(rank_1.group(2)), signal.SIGSTOP)


@pytest.mark.parametrize("moment", [starting, loading, running, stopped])
def test_ctrl_c_ends_everything(run: Run, moment: Callable[[Run], None]) -> None:
    moment(run)
    processes = family(run)
    run.process.send_signal(signal.SIGINT)
    status, lines = run.end(20.0)
    assert status == 130 and lines[-1] == "interrupted", lines
    assert left(processes, 10.0) == []


@pytest.mark.parametrize("moment", [starting, running])
def test_a_driver_that_is_killed_leaves_nothing(run: Run, moment: Callable[[Run], None]) -> None:
    moment(run)
    processes = family(run)
    run.process.kill()
    assert left(processes, 10.0) == []
