"""A scheduler whose chunks vary at random, so that profiling meets the rounds that a latency-targeting one will make.

A static budget shows small chunks only at the end of a prompt, and never a half-filled round while prompts wait.
"""

from __future__ import annotations

import math
import random

from sarathi.core.chunking import ChunkDecision, ChunkSizer
from sarathi.core.plan import BatchPlan, MemoryStats
from sarathi.core.scheduler import BaseScheduler
from sarathi.request import Request

MEAN_STRETCH = 12  # rounds under the same limits: long enough for partly computed prompts to pile up


class RandomChunks(ChunkSizer):
    """For a stretch of rounds, a limit on a round's tokens and one on each prefill's.

    The first is uniform in 1 to the budget. The second is log-uniform, so as often 1 to 32 tokens, beside whatever
    decodes there are, as 32 to 1,024. In a quarter of the stretches there is neither. The first prefill of a round
    ignores the round's limit: decodes alone may exceed it, and prompts have to go on.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._rounds_left = 0
        self._round_limit = self._chunk_limit = 1

    def begin_round(self, plan: BatchPlan, memory: MemoryStats) -> None:
        if self._rounds_left:
            self._rounds_left -= 1
            return
        draw, budget = self._random, plan.token_budget
        self._rounds_left = int(draw.expovariate(1 / MEAN_STRETCH))
        self._round_limit = self._chunk_limit = budget
        if draw.random() < 0.75:
            self._round_limit = draw.randint(1, budget)
            self._chunk_limit = round(math.exp(draw.uniform(0.0, math.log(budget))))

    def size(self, request: Request, plan: BatchPlan) -> ChunkDecision:
        room = plan.budget_left
        if plan.num_prefill_tokens:
            room = min(room, self._round_limit - plan.num_tokens)
        return ChunkDecision(max(0, min(request.num_remaining_tokens, self._chunk_limit, room)))


class RandomChunksScheduler(BaseScheduler):
    """First come, first served, with random chunks; the `params` of its config may hold a seed."""

    def make_sizer(self) -> ChunkSizer:
        return RandomChunks(self.config.params.get("seed", 0))
