"""A backend that computes nothing, for measuring everything else. Its outputs are zeros and mean nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from sarathi.worker.batch import Batch


class NoOpBackend:
    def begin_round(self, batch: Batch) -> None:
        pass

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, kv_cache: Tensor, scale: float, window: int | None
    ) -> Tensor:
        return torch.zeros_like(query)
