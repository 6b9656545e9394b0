"""What a table runs: cases, each a workload under a scheduler on a device, told in flags of sarathi.benchmark.main.

Knows no backend: where the flags lead to is said elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Label = str | int | float


@dataclass(frozen=True)
class Workload:
    """Requests to replay.

    `intervals`: flags of times between arrivals, seconds, which a backend stretches to its own speed. `reduced`: flags
    that make it small enough for a real CPU, or for a quick look.
    """

    name: str
    flags: tuple[str, ...]
    intervals: Mapping[str, float] = field(default_factory=dict)
    reduced: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """One row of a table: `labels` tell it from the others; `device` and `profile` are the simulated ones."""

    labels: Mapping[str, Label]
    workload: Workload
    scheduler: tuple[str, ...]
    device: str = "rtx_4090"
    profile: str = "lean"
    system: tuple[str, ...] = ()  # further flags: memory, parallelism, context

    @property
    def key(self) -> tuple[Label, ...]:
        return tuple(self.labels.values())


# The paper's name for a policy, where it is not that of our scheduler.
SCHEDULER_OF = {"FCFS": "SARATHI"}


def scheduler_flags(policy: str, chunk_size: int, max_num_seqs: int, **settings: object) -> tuple[str, ...]:
    """Flags that choose a scheduler, or FCFS, and set it; `settings` by field name."""
    name = SCHEDULER_OF.get(policy, policy)
    prefix = f"--{name.lower()}_scheduler_config"
    fields = {"chunk_size": chunk_size, "max_num_seqs": max_num_seqs, **settings}
    return (f"--scheduler_config_type={name}", *(f"{prefix}_{field}={value}" for field, value in fields.items()))


def fcfs_or_aging(policy: str, chunk_size: int, max_num_seqs: int, alpha: float) -> tuple[str, ...]:
    """Flags of FCFS, or of AGING with this alpha and beta -1."""
    weights = {"alpha": alpha, "beta": -1} if policy == "AGING" else {}
    return scheduler_flags(policy, chunk_size, max_num_seqs, **weights)


STATIC_INTERVAL = "--static_request_interval_generator_config_interval"


def sharegpt(
    name: str, num_requests: int, interval: float, *, reduced: Mapping[str, object], **settings: object
) -> Workload:
    """ShareGPT prompts, one every `interval` seconds; `settings`, and those of them that are other where it is
    `reduced`, by field name of the generator."""
    prefix = "--sharegpt_request_generator_config"

    def flags(fields: Mapping[str, object]) -> tuple[str, ...]:
        return tuple(f"{prefix}_{field}={value}" for field, value in fields.items())

    kind = ("--request_generator_config_type=SHAREGPT", "--interval_generator_config_type=STATIC")
    full = (*kind, *flags({"num_requests": num_requests, **settings}))
    return Workload(name, full, {STATIC_INTERVAL: interval}, flags(reduced))
