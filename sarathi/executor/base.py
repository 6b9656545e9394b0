"""What the engine asks of whatever runs a round: submit in order, wait for the oldest, in order."""

from __future__ import annotations

from typing import Any, Protocol

from sarathi.core.plan import SchedulerOutput, StepResult


class Executor(Protocol):
    max_inflight_steps: int  # rounds that may be in flight at once: pipeline stages, and with overlap one more
    overlap: bool  # whether rounds are made one ahead of the results: see BaseScheduler.overlap

    def submit(self, output: SchedulerOutput) -> None:
        """Start a round. At most `max_inflight_steps` are in flight."""
        ...

    def wait(self, until: float | None = None) -> StepResult | None:
        """The oldest round's result; None if `until` (seconds of the engine's clock) comes first."""
        ...

    def time_operators(self) -> bool:
        """From now on give each round's time by operator in its result; False if it is not known."""
        ...

    def host_calls(self) -> list[tuple[Any, str, str]]:
        """What this host does for a round, to be timed: (object, method, name)."""
        ...

    def shutdown(self) -> None:
        """Forget what is in flight. A run, or a round that failed, is over; another may follow."""
        ...
