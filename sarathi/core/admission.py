"""How many prefills at once: the gate that each proposed chunk passes."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from sarathi.core.plan import BatchPlan, MemoryStats, SchedulerOutput
from sarathi.request import Request


class GateVerdict(NamedTuple):
    num_tokens: int  # the chunk to take, 0 refuses
    reason: str | None = None  # a label, counted for the round's record
    ends_scan: bool = False  # nothing behind this one can pass either


class PrefillGate(Protocol):
    """Accepts, shrinks, grows or refuses a chunk. Pure: no clock, no log, no I/O.

    A refused request keeps its blocks and its place. After a waiting one only partial prompts are looked at, so
    that at most one waiting request is refused a round. A gate must not refuse a request that has the engine to
    itself for ever: nothing would ever run.
    """

    def review(self, request: Request, num_tokens: int, plan: BatchPlan) -> GateVerdict: ...

    def begin_round(self, plan: BatchPlan, memory: MemoryStats) -> None:
        """Called when prefills are about to be chosen, with the memory that the last round's worker saw."""

    def observe(self, output: SchedulerOutput, measured_time: float) -> None:
        """Called with each finished round and its time in seconds."""


class OpenGate(PrefillGate):
    """Everything passes."""

    def review(self, request: Request, num_tokens: int, plan: BatchPlan) -> GateVerdict:
        return GateVerdict(num_tokens)
