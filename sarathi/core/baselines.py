"""The schedulers that the field compares with, as Sarathi-Serve defined them. They differ in how a round is
composed and in how much KV they reserve; order, preemption and bookkeeping are the base's.
"""

from __future__ import annotations

from typing import Any

from sarathi.core.chunking import ChunkSizer, WholePrompt
from sarathi.core.plan import BatchPlan
from sarathi.core.scheduler import BaseScheduler
from sarathi.request import Request


class VLLMScheduler(BaseScheduler):
    """Prefill first: while prompts can be admitted, rounds hold only whole prompts and decodes stall."""

    def make_token_budget(self) -> int:
        return min(self.config.max_batched_tokens or self.max_model_len, self.max_model_len)

    def make_sizer(self) -> ChunkSizer:
        return WholePrompt()

    def reject_reason(self, request: Request) -> str | None:
        if request.num_prompt_tokens > self.token_budget:
            return (
                f"the prompt of {request.num_prompt_tokens} tokens exceeds max_batched_tokens {self.token_budget}, "
                "and this scheduler does not split prompts"
            )
        return super().reject_reason(request)

    def compose(self, plan: BatchPlan) -> None:
        self.take_prefills(plan)
        if not plan.prefills:
            self.take_decodes(plan)


class OrcaScheduler(BaseScheduler):
    """Whole prompts join the decodes' round, bounded by seats alone; KV is reserved for the longest request."""

    def make_token_budget(self) -> int:
        return self.max_num_seqs * self.max_model_len

    def make_sizer(self) -> ChunkSizer:
        return WholePrompt()

    def blocks_to_reserve(self, request: Request) -> int:
        return self.blocks.blocks_for(self.max_model_len)


class FasterTransformerScheduler(OrcaScheduler):
    """Request-level batches: prompts enter only when no decode is ready, so a batch runs to its end."""

    def compose(self, plan: BatchPlan) -> None:
        self.take_decodes(plan)
        if not plan.decodes:
            self.take_prefills(plan)


class SimpleChunkingScheduler(BaseScheduler):
    """Chunked prefill without mixing: rounds of prefill and of decode take turns.

    Partial prompts have a prefill round to themselves; waiting ones enter when there are none.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._prefill_turn = True

    def compose(self, plan: BatchPlan) -> None:
        if self.partial:
            plan.admitting = False
        if self._prefill_turn:
            self.take_prefills(plan)
        if not plan.prefills:
            self.take_decodes(plan)
        if not plan.num_tokens:
            self.take_prefills(plan)
        if plan.num_tokens:
            self._prefill_turn = not plan.prefills
