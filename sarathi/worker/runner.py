"""Runs the model on a batch: arrays to the device, the stage's layers, and what they give.

Knows no sampling, no clock and no messages.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sarathi.attention.base import AttentionBackend
from sarathi.model.transformer import DecoderModel
from sarathi.worker.batch import Batch


class ModelRunner:
    """A model, or one rank's share of it, with its KV pages.

    Args:
        device: of the model and its pages.
        kv_caches: pages of each of the rank's layers, see AttentionBackend.forward.
    """

    num_scratch_blocks = 0  # KV blocks beyond those of requests, which it writes to as it likes
    use_graphs = False  # whether rounds are replayed where they can be, and their operators not seen

    def __init__(
        self, model: DecoderModel, attention: AttentionBackend, kv_caches: Sequence[Tensor], device: torch.device
    ) -> None:
        self.model = model
        self.attention = attention
        self.kv_caches = kv_caches
        self.device = device

    def forward(self, batch: Batch, hidden: Tensor | None = None) -> Tensor | None:
        """Run the rank's layers on a round. To be called in torch.inference_mode.

        Args:
            hidden: (T, hidden_size), what the previous pipeline stage gave; None on the first stage.

        Returns the hidden states, (T, hidden_size), for the next stage; on the last stage logits, (R, vocab_size)
        float32, and None on its ranks that only helped to make them.
        """
        self.attention.begin_round(batch)
        given = self.to_device(batch.token_ids) if hidden is None else hidden
        positions, rows = self.to_device(batch.positions), self.to_device(batch.output_rows)
        return self.model(given, positions, self.kv_caches, self.attention, rows)

    def to_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def graph_bytes(self, max_num_seqs: int) -> int:
        """Device memory that `warm_up` for rounds of so many requests will take beside activations."""
        return 0

    def warm_up(self, max_num_seqs: int) -> None:
        """Prepare whatever makes later rounds faster; the pages' contents are no one's yet."""
