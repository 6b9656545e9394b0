"""What runs the rounds, before a scheduler is put on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sarathi.clock import Clock
from sarathi.executor.base import Executor
from sarathi.simulation.models import ModelShape

if TYPE_CHECKING:
    from sarathi.model.tokenizer import Tokenizer


@dataclass(frozen=True)
class RoundDevice:
    """An executor with its clock and KV pool, and what they are."""

    name: str
    simulated: bool
    model: ModelShape
    dtype_bytes: int  # of a weight or an activation
    num_blocks: int
    blocks_from: str  # what decided that number
    executor: Executor
    clock: Clock
    tokenizer: Tokenizer | None = None
    eos_token_ids: tuple[int, ...] = ()
    notes: list[str] = field(default_factory=list)
