"""The actor of one rank: a process of Ray that holds a worker and does what the driver asks, in the order of its calls.

Knows how a model's worker is made, and no rounds. The driver imports this module too, so torch waits until a worker is
made.
"""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from sarathi.errors import FieldError


class Host(NamedTuple):
    """The process of a rank."""

    node_id: str  # Ray's
    pid: int
    num_cores: int  # that it may use
    free_port: int  # of its node, when it was asked
    log: str  # file of its stderr on that node; empty where it is not known


class Team(NamedTuple):
    """What a rank must know of the others."""

    rank: int
    tensor_size: int
    num_stages: int
    init_method: str  # where rank 0 waits for the others
    num_workers_here: int  # of this team, on this node
    num_cores: int


class Refused(NamedTuple):
    """What a FieldError says, in a form that can be sent."""

    field: str
    text: str


@dataclass(frozen=True)
class MakeWorker:
    """Makes the worker of a rank: called in the actor's process, with what the rank must know of the others.

    Args:
        settings: arguments of Worker that are the same on every rank.
        num_threads: of each worker; None shares the node's cores among those there.
        timeout: seconds that a rank waits for another.
    """

    settings: dict[str, Any]
    device: str  # "cpu" or "cuda"
    num_threads: int | None
    timeout: float

    def __call__(self, team: Team) -> Any:
        import sarathi.worker  # noqa: F401  # before torch: it says how long threads spin

        import torch  # isort: skip

        from sarathi.worker.parallel import connect
        from sarathi.worker.worker import Worker

        parallel = connect(
            team.rank,
            team.tensor_size,
            team.num_stages,
            team.init_method,
            torch.device(self.device),
            self.timeout,
        )
        return Worker(
            **self.settings,
            device=self.device,
            num_threads=self.num_threads or max(1, team.num_cores // team.num_workers_here),
            parallel=parallel,
            num_workers_here=team.num_workers_here,
        )


class RayWorker:
    """What the driver calls. One call runs at a time.

    Args:
        device: number of the CUDA device to use; None leaves that to Ray.
    """

    def __init__(self, device: int | None = None) -> None:
        if device is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = str(device)
        self._worker: Any = None
        self._error: Exception | None = None  # of the round that failed

    def host(self) -> Host:
        import ray

        log = ""
        with suppress(OSError):  # Linux alone has it
            log = os.readlink("/proc/self/fd/2")
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
        with socket.socket() as listener:
            listener.bind(("", 0))
            port = listener.getsockname()[1]
        return Host(ray.get_runtime_context().get_node_id(), os.getpid(), len(cores), port, log)

    def make(self, make_worker: Callable[[Team], Any], team: Team) -> Refused | None:
        try:
            self._worker = make_worker(team)
        except FieldError as error:
            return Refused(error.field, error.text)
        return None

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """What a method of the worker returns, or the attribute's value where it is none; Refused for a FieldError."""
        try:
            member = getattr(self._worker, method)
            return member(*args, **kwargs) if callable(member) else member
        except FieldError as error:
            return Refused(error.field, error.text)

    def execute(self, message: bytes) -> Any:
        """Run a round, whose message comes pickled: once for all ranks, which Ray would do for each.

        After a round that failed none runs: it could only wait, for a peer that is gone, once more.
        """
        if self._error is not None:
            raise self._error
        try:
            return self._worker.execute(pickle.loads(message))
        except Exception as error:
            self._error = error
            raise
