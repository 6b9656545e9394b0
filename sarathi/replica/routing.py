"""Which replica a request goes to. Pure rules on the replicas' loads, for simulated replicas and real ones alike."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count
from typing import Protocol

from sarathi.replica.load import ReplicaLoad
from sarathi.request import Request


class Router(Protocol):
    def route(self, request: Request, loads: Sequence[ReplicaLoad]) -> int:
        """The index of the replica that gets `request`, which none has been sent yet. Asked once for each request."""
        ...


class RoundRobin:
    """Request n goes to replica n mod N, in order of arrival, whatever they are: Sarathi-Serve's rule."""

    def __init__(self) -> None:
        self._count = count()

    def route(self, request: Request, loads: Sequence[ReplicaLoad]) -> int:
        return next(self._count) % len(loads)


class LeastOutstandingTokens:
    """The replica whose unfinished requests have the fewest tokens, prompt and output; the first of several.

    An output counts as what the request may generate (max_tokens). In a replay of known lengths that is what it will
    generate, which no server knows.
    """

    def route(self, request: Request, loads: Sequence[ReplicaLoad]) -> int:
        return min(range(len(loads)), key=lambda i: loads[i].outstanding_tokens)


class RandomReplica:
    """Any replica, each as likely as the others."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"routing {seed}")  # not the draws of arrivals under the same seed

    def route(self, request: Request, loads: Sequence[ReplicaLoad]) -> int:
        return self._rng.randrange(len(loads))


class PredictedWait:
    """The replica where the request should begin first.

    Predicted is (tokens of the requests that wait there for their first token) / (tokens of such requests that it
    began per second of late); a replica that has not begun one yet counts with the mean pace of the others. Among
    equals, as where nobody waits, the one with the fewest outstanding tokens. The queue counts as first come, first
    served, whatever its order.
    """

    def route(self, request: Request, loads: Sequence[ReplicaLoad]) -> int:
        paces = [load.pace for load in loads]
        known = [pace for pace in paces if pace is not None]
        usual = sum(known) / len(known) if known else 1.0

        def key(i: int) -> tuple[float, int]:
            return loads[i].backlog_tokens / (paces[i] or usual), loads[i].outstanding_tokens

        return min(range(len(loads)), key=key)
