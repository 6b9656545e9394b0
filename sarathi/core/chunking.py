"""How much: the number of prompt tokens a prefill gets in this round."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from sarathi.core.plan import BatchPlan, MemoryStats, SchedulerOutput
from sarathi.request import Request


class ChunkDecision(NamedTuple):
    num_tokens: int  # 0: nothing for this request in this round
    predicted_time: float | None = None  # seconds of the round with this chunk, where the sizer predicts
    num_candidates: int = 1


class ChunkSizer(Protocol):
    """Chooses a chunk, given what the plan holds so far. Pure: no clock, no log, no I/O."""

    def size(self, request: Request, plan: BatchPlan) -> ChunkDecision:
        """At most the request's remaining tokens and the budget left (a chunk alone in its round may exceed it)."""
        ...

    def predict(self, request: Request, num_tokens: int, plan: BatchPlan) -> float | None:
        """Seconds of the round with this chunk: asked where a gate has changed it. None if nothing is predicted."""
        return None

    def begin_round(self, plan: BatchPlan, memory: MemoryStats) -> None:
        """Called when prefills are about to be chosen, with the memory that the last round's worker saw."""

    def observe(self, output: SchedulerOutput, measured_time: float) -> None:
        """Called with each finished round and its time in seconds."""


class StaticBudget(ChunkSizer):
    """All that fits: h = min(remaining, budget - taken) (paper, Eq. 6 and 7)."""

    def size(self, request: Request, plan: BatchPlan) -> ChunkDecision:
        return ChunkDecision(min(request.num_remaining_tokens, plan.budget_left))


class DynamicSchedule(ChunkSizer):
    """A budget that shrinks as a prompt progresses, since attention over a long context costs more.

    Sarathi-Serve's schedule: `stages` sizes evenly spaced from `high` down to `low`, rounded to multiples of
    32 (of `low`, where smaller); a stage covers ceil(max_tokens / stages) computed tokens, and prompts beyond
    `max_tokens` stay in the last. As there, the stage's size counts all of the round's tokens.
    """

    def __init__(self, low: int, high: int, max_tokens: int, stages: int) -> None:
        if not 1 <= low <= high:
            raise ValueError(f"low_chunk_size {low}, high_chunk_size {high}: 1 <= low <= high is needed")
        if max_tokens < 1 or stages < 1:
            raise ValueError(f"chunk_schedule_max_tokens {max_tokens}, chunk_schedule_stages {stages}: at least 1")
        unit = min(32, low)
        sizes = np.linspace(low, high, stages, dtype=np.int32)[::-1]
        self.sizes: list[int] = (np.round(sizes / unit) * unit).astype(int).tolist()
        self.tokens_per_stage = -(-max_tokens // stages)

    def size(self, request: Request, plan: BatchPlan) -> ChunkDecision:
        stage = min(request.num_computed_tokens // self.tokens_per_stage, len(self.sizes) - 1)
        budget = min(self.sizes[stage], plan.token_budget) - plan.num_tokens
        return ChunkDecision(max(0, min(request.num_remaining_tokens, budget)))


class WholePrompt(ChunkSizer):
    """Prompts are never split: all or nothing, and a prompt above the budget runs in a round of its own."""

    def size(self, request: Request, plan: BatchPlan) -> ChunkDecision:
        num_tokens = request.num_remaining_tokens
        return ChunkDecision(num_tokens if num_tokens <= plan.budget_left or not plan.num_tokens else 0)
