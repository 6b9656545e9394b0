"""What the engine asks of whatever runs a round: submit in order, wait for the oldest, in order."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from sarathi.core.plan import SchedulerOutput


class MemoryStats(NamedTuple):
    """Device memory as the worker saw it after its last round, MB (10^6 bytes)."""

    gpu_mem_used_mb: float = 0.0
    gpu_mem_free_mb: float = 0.0
    cuda_allocated_mb: float = 0.0
    cuda_reserved_mb: float = 0.0


class StepResult(NamedTuple):
    """The outcome of one round.

    `token_ids` has one entry for each decode, then one for each prefill chunk, in the order of the
    SchedulerOutput; the entry of a chunk that does not complete its request is ignored.
    """

    token_ids: list[int]
    execution_time: float  # seconds, one stage's round as the worker measured it
    memory: MemoryStats


class Executor(Protocol):
    max_inflight_steps: int  # pipeline stages: rounds that may be in flight at once

    def submit(self, output: SchedulerOutput) -> None:
        """Start a round. At most `max_inflight_steps` are in flight."""
        ...

    def wait(self, until: float | None = None) -> StepResult | None:
        """The oldest round's result; None if `until` (seconds of the engine's clock) comes first."""
        ...

    def shutdown(self) -> None: ...
