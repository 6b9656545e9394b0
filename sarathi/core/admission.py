"""How many prefills at once: the gate that each proposed chunk passes."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from sarathi.core.plan import BatchPlan, SchedulerOutput
from sarathi.request import Request

# Reasons a gate may give; each is counted for the round's record.
REFUSED_BY_CAP: Final = "refused_by_cap"  # fixed for the round: nothing behind can pass, the scan ends
REFUSED_BY_MIN_CHUNK: Final = "refused_by_min_chunk"
WARM_START: Final = "warm_start"


class GateVerdict(NamedTuple):
    num_tokens: int  # the chunk to take, 0 refuses
    reason: str | None = None


class PrefillGate(Protocol):
    """Accepts, shrinks, grows or refuses a chunk. Pure: no clock, no log, no I/O.

    A refused request keeps its blocks and its place; a waiting one ends the scan, so that at most one is
    refused a round.
    """

    def review(self, request: Request, num_tokens: int, plan: BatchPlan) -> GateVerdict: ...

    def begin_round(self, plan: BatchPlan) -> None:
        """Called once a round, before any decode is taken."""

    def observe(self, output: SchedulerOutput, measured_time: float) -> None:
        """Called with each finished round and its time in seconds."""


class OpenGate(PrefillGate):
    """Everything passes."""

    def review(self, request: Request, num_tokens: int, plan: BatchPlan) -> GateVerdict:
        return GateVerdict(num_tokens)
