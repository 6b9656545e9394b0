"""Copies of a round's arrays to a GPU that the host does not wait for."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class Staging:
    """One pinned buffer for each kind of array, filled anew each round.

    Nothing here waits: whoever fills a buffer again must have waited for the device since, as Worker.run does before
    every round. FlashInfer's plans, which have such buffers of their own, ask for the same.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[str, Tensor] = {}

    def copy(self, kind: str, array: np.ndarray, out: Tensor | None = None) -> Tensor:
        """The array on the device, in `out` if that is given. Valid until `copy` of the same kind on a CPU."""
        host = self._buffer(kind, array)
        host.copy_(torch.from_numpy(array))
        if out is None:
            return host.to(self._device, non_blocking=True)
        return out[: len(array)].copy_(host, non_blocking=True)

    def _buffer(self, kind: str, array: np.ndarray) -> Tensor:
        buffer = self._buffers.get(kind)
        if buffer is None or len(buffer) < len(array):
            capacity = 1 << max(6, (len(array) - 1).bit_length())
            dtype = torch.from_numpy(array[:0]).dtype
            buffer = torch.empty(capacity, dtype=dtype, pin_memory=self._device.type == "cuda")
            self._buffers[kind] = buffer
        return buffer[: len(array)]
