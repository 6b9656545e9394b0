"""Settings of each scheduler, and the names by which they are chosen.

A new scheduler type is one class here and one entry in SCHEDULER_CONFIGS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sarathi.config.setting import Config, setting


@dataclass(frozen=True)
class BaseSchedulerConfig(Config):
    max_num_seqs: int = setting(
        128, "Most requests that run at the same time.", unit="requests", at_least=1, at_most=10**6
    )


@dataclass(frozen=True)
class ChunkedSchedulerConfig(BaseSchedulerConfig):
    chunk_size: int = setting(512, "Token budget of a round, decodes included.", unit="tokens", at_least=1)


@dataclass(frozen=True)
class SarathiSchedulerConfig(ChunkedSchedulerConfig):
    enable_dynamic_chunking_schedule: bool = setting(
        False, "Shrink the budget from high_chunk_size to low_chunk_size as a prompt progresses."
    )
    low_chunk_size: int | None = setting(None, "Last chunk size of the dynamic schedule.", unit="tokens", at_least=1)
    high_chunk_size: int | None = setting(None, "First chunk size of the dynamic schedule.", unit="tokens", at_least=1)
    chunk_schedule_max_tokens: int | None = setting(
        None, "Prompt tokens after which the dynamic schedule stays at its last stage.", unit="tokens", at_least=1
    )
    chunk_schedule_stages: int | None = setting(None, "Stages of the dynamic schedule.", at_least=1, at_most=10**4)

    def check(self) -> None:
        if self.enable_dynamic_chunking_schedule:
            for name in ("low_chunk_size", "high_chunk_size", "chunk_schedule_max_tokens", "chunk_schedule_stages"):
                self.require(name, "an integer of at least 1, for enable_dynamic_chunking_schedule,")
        if self.low_chunk_size and self.high_chunk_size and self.low_chunk_size > self.high_chunk_size:
            self.reject("low_chunk_size", f"at most high_chunk_size, which is {self.high_chunk_size}")


@dataclass(frozen=True)
class AgingSchedulerConfig(ChunkedSchedulerConfig):
    alpha: float | Literal["auto"] = setting(
        150.0,
        "Weight of waiting; auto takes 0.3 x the measured prefill tokens per second.",
        unit="priority per second",
        above=0,
        at_most=10**12,
    )
    beta: float = setting(
        -1.0, "Weight of the prompt tokens that remain.", unit="priority per token", at_least=-(10**12), below=0
    )


@dataclass(frozen=True)
class LprsSchedulerConfig(ChunkedSchedulerConfig):
    """The budget is the hard limit beneath the target."""

    chunk_size: int = setting(1024, "Most tokens of a round, decodes included.", unit="tokens", at_least=1)
    target_ms: float = setting(100.0, "Round time to aim at.", unit="milliseconds", above=0, at_most=10**6)
    delta: int = setting(32, "Chunk sizes that are tried are multiples of this.", unit="tokens", at_least=1)
    lambda_under: float = setting(1.0, "Penalty of falling short of the target.", unit="per second", above=0)
    lambda_over: float = setting(2.5, "Penalty of passing the target.", unit="per second", above=0)
    predictor_file: str | None = setting(
        None, "Latency predictor, .npz; null takes the one shipped for device and model."
    )
    bias_correction: float = setting(
        0.0, "Weight of a measured round in the running correction of predictions; 0 is off.", at_least=0, at_most=0.2
    )
    drift_limit: float | None = setting(
        None, "Mean relative error of predictions above which the static budget decides; null is off.", above=0
    )


@dataclass(frozen=True)
class ApcSchedulerConfig(ChunkedSchedulerConfig):
    c_max: int = setting(6, "Most active prefills.", unit="requests", at_least=1, at_most=10**6)
    l_min: int = setting(16, "Least chunk of a prefill that does not end with it.", unit="tokens", at_least=1)
    cap_scope: Literal["round", "unfinished"] = setting(
        "round", "What is active: prefills of the round, or every other unfinished prompt."
    )
    on_defer: Literal["pause", "release"] = setting(
        "pause", "What a refused partial prompt does with its KV blocks: keep them, or give them back and wait again."
    )

    def check(self) -> None:
        if self.l_min > self.chunk_size:
            self.reject("l_min", f"at most chunk_size, which is {self.chunk_size}")


@dataclass(frozen=True)
class LprsApcSchedulerConfig(LprsSchedulerConfig, ApcSchedulerConfig):
    """LPRS and APC."""


@dataclass(frozen=True)
class AgingLprsSchedulerConfig(LprsSchedulerConfig, AgingSchedulerConfig):
    """Aging and LPRS."""


@dataclass(frozen=True)
class AgingLprsApcSchedulerConfig(LprsApcSchedulerConfig, AgingSchedulerConfig):
    """Aging, LPRS and APC."""


@dataclass(frozen=True)
class SpfSchedulerConfig(ChunkedSchedulerConfig):
    """Shortest remaining prefill first."""


@dataclass(frozen=True)
class SimpleChunkingSchedulerConfig(ChunkedSchedulerConfig):
    """Prefill chunks and decodes in rounds of their own."""


@dataclass(frozen=True)
class VllmSchedulerConfig(BaseSchedulerConfig):
    max_batched_tokens: int | None = setting(
        None, "Most prompt tokens in a round; null takes the model's context length.", unit="tokens", at_least=1
    )


@dataclass(frozen=True)
class OrcaSchedulerConfig(BaseSchedulerConfig):
    """Whole prompts beside decodes."""


@dataclass(frozen=True)
class FasterTransformerSchedulerConfig(BaseSchedulerConfig):
    """Whole batches, one after the other."""


@dataclass(frozen=True)
class CustomSchedulerConfig(ChunkedSchedulerConfig):
    """A scheduler class outside this package, named by its dotted path."""

    class_path: str = setting("", "Import path of the scheduler class, as in my_module.MyScheduler.")
    params: dict = setting(dict, "The class's own settings, a JSON object.")

    def check(self) -> None:
        module, _, name = self.class_path.rpartition(".")
        if not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
            self.reject("class_path", "an import path such as my_module.MyScheduler")


SCHEDULER_CONFIGS: dict[str, type[BaseSchedulerConfig]] = {
    "SARATHI": SarathiSchedulerConfig,
    "AGING": AgingSchedulerConfig,
    "SPF": SpfSchedulerConfig,
    "LPRS": LprsSchedulerConfig,
    "APC": ApcSchedulerConfig,
    "LPRS_APC": LprsApcSchedulerConfig,
    "AGING_LPRS": AgingLprsSchedulerConfig,
    "AGING_LPRS_APC": AgingLprsApcSchedulerConfig,
    "VLLM": VllmSchedulerConfig,
    "ORCA": OrcaSchedulerConfig,
    "FASTER_TRANSFORMER": FasterTransformerSchedulerConfig,
    "SIMPLE_CHUNKING": SimpleChunkingSchedulerConfig,
}
