"""Copies of a round's arrays to a GPU that the host does not wait for."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class Staging:
    """One pinned buffer for each kind of array, filled anew each round.

    `begin` waits until the copies of the round before have been made, which they are as soon as that round starts on
    the device. A second set of buffers would not help: FlashInfer's plan has only one of its own.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[str, Tensor] = {}
        self._copied = torch.cuda.Event() if device.type == "cuda" else None

    def begin(self) -> None:
        if self._copied is not None:
            self._copied.synchronize()  # returns at once where it was never recorded

    def copy(self, kind: str, array: np.ndarray, out: Tensor | None = None) -> Tensor:
        """The array on the device, in `out` if that is given. Valid until `copy` of the same kind on a CPU."""
        host = self._buffer(kind, array)
        host.copy_(torch.from_numpy(array))
        if out is None:
            return host.to(self._device, non_blocking=True)
        return out[: len(array)].copy_(host, non_blocking=True)

    def end(self) -> None:
        """All copies of the round, FlashInfer's plans' too, are on the way."""
        if self._copied is not None:
            self._copied.record()

    def _buffer(self, kind: str, array: np.ndarray) -> Tensor:
        buffer = self._buffers.get(kind)
        if buffer is None or len(buffer) < len(array):
            capacity = 1 << max(6, (len(array) - 1).bit_length())
            dtype = torch.from_numpy(array[:0]).dtype
            buffer = torch.empty(capacity, dtype=dtype, pin_memory=self._copied is not None)
            self._buffers[kind] = buffer
        return buffer[: len(array)]
