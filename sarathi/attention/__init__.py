"""Attention backends behind one interface; each is imported when it is chosen."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sarathi.errors import FieldError

if TYPE_CHECKING:
    import torch

    from sarathi.attention.base import AttentionBackend

logger = logging.getLogger(__name__)


def make_backend(name: str, device: torch.device, dtype: torch.dtype) -> AttentionBackend:
    """The backend that an `attention_backend` setting means on this device.

    AUTO is CPU_PAGED on a CPU in float32, where numba is installed, else SDPA. Raises FieldError of
    `attention_backend`.
    """
    is_cpu = device.type == "cpu"
    if name == "FLASHINFER":
        if not is_cpu:
            raise FieldError("attention_backend", "FLASHINFER is not available yet; AUTO, SDPA or NO_OP")
        logger.warning("attention_backend FLASHINFER needs a CUDA device; the CPU's own backend takes its place")
        name = "AUTO"
    if name == "AUTO":
        name = _automatic(is_cpu, dtype)
    if name == "NO_OP":
        from sarathi.attention.no_op import NoOpBackend

        return NoOpBackend()
    if name == "SDPA":
        from sarathi.attention.sdpa import SdpaBackend

        return SdpaBackend()
    if not is_cpu or dtype.itemsize != 4:
        raise FieldError("attention_backend", f"CPU_PAGED works on a CPU in float32, not on {device} in {dtype}")
    try:
        from sarathi.attention.paged_cpu import PagedCpuBackend
    except ImportError as error:
        raise FieldError("attention_backend", f"CPU_PAGED needs numba ({error}); pip install numba") from error
    return PagedCpuBackend()


def _automatic(is_cpu: bool, dtype: torch.dtype) -> str:
    if not is_cpu or dtype.itemsize != 4:
        return "SDPA"
    try:
        import numba as _  # noqa: F401
    except ImportError:
        logger.warning("numba is not installed: attention goes through torch, which is several times slower")
        return "SDPA"
    return "CPU_PAGED"
