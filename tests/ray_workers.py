"""Workers of Ray that compute nothing, for tests of how they are started, asked and ended."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import ray

from sarathi.core.plan import MemoryStats
from sarathi.errors import FieldError
from sarathi.executor.ray_cluster import reserve
from sarathi.executor.ray_session import STORE_BYTES
from sarathi.executor.ray_worker import Team
from sarathi.executor.ray_workers import RayWorkers
from sarathi.worker.batch import WorkerOutput

NUM_CPUS, NUM_GPUS = 8, 2  # that the cluster believes in


class FakeWorker:
    """Does what a message says, which is a list for each rank that is to do anything."""

    def __init__(self, team: Team) -> None:
        self.rank = team.rank

    def execute(self, message: dict[int, list[Any]]) -> WorkerOutput:
        seconds, what, *errors = message.get(self.rank, [0.0, "answer"])
        time.sleep(seconds)
        if what == "raise":
            raise errors[0]
        if what == "die":
            print("out of luck", file=sys.stderr, flush=True)
            os.kill(os.getpid(), 9)
        assert what == "answer"
        return WorkerOutput([7 + self.rank], None, 0.001, MemoryStats())

    def meet(self) -> None:
        """Load what a PeerError needs, which takes a while."""
        import sarathi.worker.parallel  # noqa: F401

    def load(self, seconds: dict[int, float]) -> None:
        time.sleep(seconds.get(self.rank, 0.0))

    def cuda_devices(self) -> str | None:
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    def refuse(self, rank: int) -> int:
        if self.rank == rank:
            raise FieldError("num_gpu_blocks", "too many")
        return rank


def make_fake(team: Team) -> FakeWorker:
    return FakeWorker(team)


def refuse_on_rank_1(team: Team) -> FakeWorker:
    if team.rank == 1:
        raise FieldError("model", "it does not fit")
    return FakeWorker(team)


@contextmanager
def ray_cluster() -> Iterator[None]:
    """A Ray of this process, in which `join_or_start` finds itself."""
    ray.init(
        address="local",
        num_cpus=NUM_CPUS,
        num_gpus=NUM_GPUS,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=STORE_BYTES,
        _system_config={"prestart_worker_first_driver": False},
    )
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def fake_workers(
    num_stages: int = 2,
    *,
    make_worker: Callable[[Team], Any] = make_fake,
    timeout: float = 60.0,
    device: str = "cpu",
    mapping: list[list[Any]] | None = None,
) -> Iterator[RayWorkers]:
    workers = RayWorkers(
        reserve(num_stages, device, mapping), make_worker, tensor_size=1, num_stages=num_stages, timeout=timeout
    )
    try:
        yield workers
    finally:
        workers.end("the test is over")


def processes_of(workers: RayWorkers) -> list[psutil.Process]:
    return [psutil.Process(int(name.split("process ")[1].split()[0])) for name in workers.names()]


def all_end(processes: list[psutil.Process], seconds: float) -> bool:
    _, alive = psutil.wait_procs(processes, seconds)
    return not alive
