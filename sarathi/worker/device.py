"""Which device a worker runs on, and in which type of numbers."""

from __future__ import annotations

import logging

import torch

from sarathi.errors import FieldError

logger = logging.getLogger(__name__)

DTYPES = {
    "half": torch.float16,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float": torch.float32,
    "float32": torch.float32,
}


def find_device(name: str) -> torch.device:
    """The device "auto", "cpu" or "cuda" stands for. Raises FieldError where it is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise FieldError("device", "'cuda' is not available: torch finds no CUDA device; auto or cpu")
    return torch.device(name)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """The type "auto" or a name stands for; one that the device has no instructions for is warned of."""
    if name != "auto":
        dtype = DTYPES[name]
    else:
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    if device.type == "cpu" and dtype is not torch.float32:
        native = torch.backends.mkldnn.is_available() and _is_native(dtype)
        if not native:
            logger.warning("%s on this CPU is 4 to 6 times slower than float32, the default: no native support", dtype)
    return dtype


def _is_native(dtype: torch.dtype) -> bool:
    if dtype is torch.bfloat16:
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return bool(torch.cpu._is_amx_fp16_supported()) if hasattr(torch.cpu, "_is_amx_fp16_supported") else False
