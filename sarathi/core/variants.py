"""The schedulers by name. A new policy is one hook overridden here, or in your own file, and one dict entry."""

from __future__ import annotations

from sarathi.core.baselines import (
    FasterTransformerScheduler,
    OrcaScheduler,
    SimpleChunkingScheduler,
    VLLMScheduler,
)
from sarathi.core.chunking import ChunkSizer, DynamicSchedule, StaticBudget
from sarathi.core.order import Aging, AutoAging, OrderPolicy, ShortestPrefillFirst
from sarathi.core.scheduler import BaseScheduler


class SarathiScheduler(BaseScheduler):
    """Sarathi-Serve: FCFS with a static token budget, or its schedule of shrinking chunks."""

    def make_token_budget(self) -> int:
        if self.config.enable_dynamic_chunking_schedule:
            return self.config.high_chunk_size
        return self.config.chunk_size

    def make_sizer(self) -> ChunkSizer:
        config = self.config
        if not config.enable_dynamic_chunking_schedule:
            return StaticBudget()
        return DynamicSchedule(
            config.low_chunk_size,
            config.high_chunk_size,
            config.chunk_schedule_max_tokens,
            config.chunk_schedule_stages,
        )


class AgingScheduler(BaseScheduler):
    """Prefills by alpha * waiting time + beta * remaining tokens."""

    def make_order(self) -> OrderPolicy:
        if self.config.alpha == "auto":
            return AutoAging(self.config.beta)
        return Aging(self.config.alpha, self.config.beta)


class SPFScheduler(BaseScheduler):
    """Shortest remaining prefill first: the limit of Aging for alpha -> 0, without its protection."""

    def make_order(self) -> OrderPolicy:
        return ShortestPrefillFirst()


SCHEDULERS: dict[str, type[BaseScheduler]] = {
    "SARATHI": SarathiScheduler,
    "AGING": AgingScheduler,
    "SPF": SPFScheduler,
    "VLLM": VLLMScheduler,
    "ORCA": OrcaScheduler,
    "FASTER_TRANSFORMER": FasterTransformerScheduler,
    "SIMPLE_CHUNKING": SimpleChunkingScheduler,
}
