"""Whether a CUDA device can be used, told without importing torch where there is none."""

from __future__ import annotations

import os

DRIVER_FILES = ("/dev/nvidiactl", "/dev/dxg", "/proc/driver/nvidia/version")  # Linux, WSL, containers


def has_cuda_device() -> bool:
    """True where the driver is there and torch, if it is installed and built for CUDA, finds a device."""
    if not any(map(os.path.exists, DRIVER_FILES)):
        return False
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()
