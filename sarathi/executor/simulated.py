"""A device that computes nothing and takes, in virtual time, as long as a real one would."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from sarathi.clock import VirtualClock
from sarathi.core.plan import MemoryStats, SchedulerOutput, StepResult

OperatorTimes = Callable[[SchedulerOutput], dict[str, float]]  # seconds by operator of a round


class LatencyModel(Protocol):
    def stage_times(self, output: SchedulerOutput) -> tuple[float, ...]:
        """Seconds that each pipeline stage needs for a round."""
        ...

    @property
    def operator_times(self) -> OperatorTimes | None:
        """What tells the operators of the stage that takes longest; None where rounds are known as a whole only."""
        ...


class SimulatedExecutor:
    """Stages in a row, each busy with one round at a time; waiting for a result moves the clock.

    Every token it returns is `token_id`: lengths are decided by max_tokens.

    Args:
        latency: seconds a round.
        clock: the engine's clock, which only this executor and the replay move.
        num_stages: pipeline stages.
        jitter: a factor drawn for each round, or None for exact times.
        memory: device memory when that many KV blocks are in use.
    """

    def __init__(
        self,
        latency: LatencyModel,
        clock: VirtualClock,
        *,
        num_stages: int = 1,
        jitter: Callable[[], float] | None = None,
        memory: Callable[[int], MemoryStats] | None = None,
        token_id: int = 0,
    ) -> None:
        self.max_inflight_steps = num_stages
        self.overlap = False
        self._latency = latency
        self._stage_times = latency.stage_times
        self._operator_times: OperatorTimes | None = None
        self._clock = clock
        self._jitter = jitter
        self._memory = memory
        self._token = [token_id]
        self._stage_free_at = [0.0] * num_stages
        self._inflight: deque[tuple[float, StepResult]] = deque()

    def submit(self, output: SchedulerOutput) -> None:
        times = self._stage_times(output)
        factor = 1.0
        if self._jitter is not None:
            factor = self._jitter()
            times = tuple(factor * seconds for seconds in times)
        end = self._clock.now()
        free_at = self._stage_free_at
        for stage, seconds in enumerate(times):
            if free_at[stage] > end:
                end = free_at[stage]
            end += seconds
            free_at[stage] = end
        num_entries = len(output.decodes) + len(output.prefills)
        memory = MemoryStats() if self._memory is None else self._memory(output.num_used_blocks)
        result = StepResult(self._token * num_entries, max(times), memory)
        if self._operator_times is not None:
            seconds_by_operator = self._operator_times(output)
            result = result._replace(
                operator_times={name: factor * seconds for name, seconds in seconds_by_operator.items()}
            )
        self._inflight.append((end, result))

    def wait(self, until: float | None = None) -> StepResult | None:
        end, result = self._inflight[0]
        if until is not None and until < end:
            self._clock.sleep_until(until)
            return None
        self._inflight.popleft()
        self._clock.sleep_until(end)
        return result

    def time_operators(self) -> bool:
        """False where round times come from a table of measured ones."""
        self._operator_times = self._latency.operator_times
        return self._operator_times is not None

    def host_calls(self) -> list[tuple[Any, str, str]]:
        return [(self, "submit", "simulation"), (self, "wait", "simulation")]

    def shutdown(self) -> None:
        self._inflight.clear()
