"""The schedulers by name. A new policy is one hook overridden here, or in your own file, and one dict entry."""

from __future__ import annotations

from sarathi.core.admission import ActivePrefillControl, PrefillGate
from sarathi.core.baselines import (
    FasterTransformerScheduler,
    OrcaScheduler,
    SimpleChunkingScheduler,
    VLLMScheduler,
)
from sarathi.core.chunking import ChunkSizer, DynamicSchedule, LatencyTarget, StaticBudget
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


class LPRSScheduler(BaseScheduler):
    """Chunks whose predicted round time comes closest to a target. On its own it breaks prompts into crumbs where
    a round of decodes alone is at the target already; APC is the remedy."""

    def make_sizer(self) -> ChunkSizer:
        if self.predictor is None:
            raise ValueError(f"{type(self).__name__} needs a latency predictor")
        config = self.config
        return LatencyTarget(
            self.predictor,
            config.target_ms / 1e3,
            delta=config.delta,
            lambda_under=config.lambda_under,
            lambda_over=config.lambda_over,
            bias_correction=config.bias_correction,
            drift_limit=config.drift_limit,
        )


class APCScheduler(BaseScheduler):
    """A cap on active prefills and a least chunk, over a static budget."""

    def make_gate(self) -> PrefillGate:
        config = self.config
        return ActivePrefillControl(config.c_max, config.l_min, config.max_num_seqs, config.cap_scope, config.on_defer)


class LPRSAPCScheduler(LPRSScheduler, APCScheduler):
    """LPRS with APC, first come, first served."""


class AgingLPRSScheduler(AgingScheduler, LPRSScheduler):
    """LPRS in the order of Aging."""


class AgingLPRSAPCScheduler(AgingScheduler, LPRSScheduler, APCScheduler):
    """All three."""


SCHEDULERS: dict[str, type[BaseScheduler]] = {
    "SARATHI": SarathiScheduler,
    "AGING": AgingScheduler,
    "SPF": SPFScheduler,
    "LPRS": LPRSScheduler,
    "APC": APCScheduler,
    "LPRS_APC": LPRSAPCScheduler,
    "AGING_LPRS": AgingLPRSScheduler,
    "AGING_LPRS_APC": AgingLPRSAPCScheduler,
    "VLLM": VLLMScheduler,
    "ORCA": OrcaScheduler,
    "FASTER_TRANSFORMER": FasterTransformerScheduler,
    "SIMPLE_CHUNKING": SimpleChunkingScheduler,
}
