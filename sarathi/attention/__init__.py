"""Attention backends behind one interface; each is imported when it is chosen."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sarathi.errors import FieldError

if TYPE_CHECKING:
    import torch

    from sarathi.attention.base import AttentionBackend, AttentionLayout

logger = logging.getLogger(__name__)

INSTALL_CUDA = "pip install 'sarathi-serve-fair[cuda]'"


def make_backend(
    name: str, device: torch.device, dtype: torch.dtype, layout: AttentionLayout | None = None
) -> AttentionBackend:
    """The backend that an `attention_backend` setting means on this device.

    AUTO is CPU_PAGED on a CPU in float32, where numba is installed, and FLASHINFER on a CUDA device where that works,
    else SDPA. Only FLASHINFER needs `layout`, without which AUTO does not take it. Raises FieldError of
    `attention_backend`.
    """
    if name == "NO_OP":
        from sarathi.attention.no_op import NoOpBackend

        return NoOpBackend()
    if device.type == "cpu" and name == "FLASHINFER":
        logger.warning("attention_backend FLASHINFER needs a CUDA device; the CPU's own backend takes its place")
        name = "AUTO"
    if device.type == "cpu" and name == "AUTO":
        name = _automatic_on_cpu(dtype)
    if name in ("AUTO", "FLASHINFER"):
        backend = _flashinfer(device, dtype, layout)
        if not isinstance(backend, str):
            return backend
        if name == "FLASHINFER":
            raise FieldError("attention_backend", f"{backend}; AUTO, SDPA or NO_OP")
        logger.warning("%s: attention goes through torch, which is several times slower", backend)
    elif name == "CPU_PAGED":
        return _paged_cpu(device, dtype)
    from sarathi.attention.sdpa import SdpaBackend

    return SdpaBackend(device)


def _automatic_on_cpu(dtype: torch.dtype) -> str:
    if dtype.itemsize != 4:
        return "SDPA"
    try:
        import numba as _  # noqa: F401
    except ImportError:
        logger.warning("numba is not installed: attention goes through torch, which is several times slower")
        return "SDPA"
    return "CPU_PAGED"


def _paged_cpu(device: torch.device, dtype: torch.dtype) -> AttentionBackend:
    if device.type != "cpu" or dtype.itemsize != 4:
        raise FieldError("attention_backend", f"CPU_PAGED works on a CPU in float32, not on {device} in {dtype}")
    try:
        from sarathi.attention.paged_cpu import PagedCpuBackend
    except ImportError as error:
        raise FieldError("attention_backend", f"CPU_PAGED needs numba ({error}); pip install numba") from error
    return PagedCpuBackend()


def _flashinfer(device: torch.device, dtype: torch.dtype, layout: AttentionLayout | None) -> AttentionBackend | str:
    """The backend, or why it cannot be had."""
    if dtype.itemsize != 2:
        return f"FLASHINFER computes in float16 and bfloat16, not in {str(dtype).removeprefix('torch.')}"
    try:
        from sarathi.attention.flashinfer_backend import FlashInferBackend, unsupported
    except (ImportError, OSError, RuntimeError) as error:  # it loads libraries of CUDA
        return f"FLASHINFER needs flashinfer-python ({_first_line(error)}); {INSTALL_CUDA}"
    if layout is None:
        return "FLASHINFER needs the sizes of the heads"
    if (reason := unsupported(layout)) is not None:
        return reason
    try:
        return FlashInferBackend(layout, dtype, device)
    except (RuntimeError, OSError) as error:
        # Its kernels are compiled here, for which nvcc and a C++ compiler must be there.
        return f"FLASHINFER does not run on {device} ({_first_line(error)})"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
