"""Workers of Ray that compute nothing, for tests of how they are started, asked and ended."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from sarathi.core.plan import MemoryStats
from sarathi.errors import FieldError
from sarathi.executor.ray_cluster import reserve
from sarathi.executor.ray_worker import Team
from sarathi.executor.ray_workers import RayWorkers
from sarathi.worker.batch import WorkerOutput

NUM_CPUS = 8


class FakeWorker:
    """Does what a message says: a dictionary of what each rank is to do, by rank."""

    def __init__(self, team: Team) -> None:
        self.team = team
        self.asked: list[Any] = []

    def execute(self, message: dict[int, Any]) -> WorkerOutput:
        self.asked.append(message)
        rank = self.team.rank
        what, *values = message.get(rank, ("sleep", 0.0))
        if what == "sleep":
            time.sleep(values[0])
        elif what == "raise":
            raise values[0]
        elif what == "lose":  # as a rank does whose peer is gone
            from sarathi.worker.parallel import PeerError

            time.sleep(values[0])
            raise PeerError(f"rank {rank}: another rank is gone")
        elif what == "exit":
            time.sleep(values[0])
            os.kill(os.getpid(), 9)
        return WorkerOutput([7 + rank], None, 0.001 * (rank + 1), MemoryStats(100.0 * (rank + 1), 900.0, 50.0, 60.0))

    def num_asked(self) -> int:
        return len(self.asked)

    def refuse(self, rank: int) -> int:
        if self.team.rank == rank:
            raise FieldError("num_gpu_blocks", "too many")
        return rank


def make_fake(team: Team) -> FakeWorker:
    return FakeWorker(team)


def refuse_to_start(team: Team) -> FakeWorker:
    if team.rank == 1:
        raise FieldError("model", "it does not fit")
    return FakeWorker(team)


def start_ray() -> None:
    ray.init(
        address="local",
        num_cpus=NUM_CPUS,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=80 << 20,
        _system_config={"prestart_worker_first_driver": False},
    )


@contextmanager
def fake_workers(
    tensor_size: int = 1, num_stages: int = 1, make_worker: Any = make_fake, timeout: float = 60.0, mapping: Any = None
) -> Iterator[RayWorkers]:
    workers = RayWorkers(
        reserve(tensor_size * num_stages, "cpu", mapping),
        make_worker,
        tensor_size=tensor_size,
        num_stages=num_stages,
        timeout=timeout,
    )
    try:
        yield workers
    finally:
        workers.end("the test is over")
