"""How many threads a compiled loop takes: torch's number, on the OpenMP library that both share."""

from __future__ import annotations

import logging
import os
import sys

import torch  # before numba starts its threads: both then share torch's OpenMP library and its threads

try:
    import numba
except ImportError as error:
    raise ImportError(f"compiled loops need numba: pip install numba ({error})") from error

logger = logging.getLogger(__name__)

if sys.platform == "linux" and "NUMBA_THREADING_LAYER" not in os.environ:
    try:
        from numba.np.ufunc import omppool as _  # noqa: F401  # pyright: ignore
    except ImportError as error:  # slim images lack the library by the name that numba looks for
        logger.warning("compiled loops run on threads of their own beside torch's; libgomp1 would join them: %s", error)
    else:
        numba.config.THREADING_LAYER = "omp"  # pyright: ignore


def start_threads() -> None:
    """Start numba's threads, if they are not, without changing torch's number. Before the first loop runs."""
    num_threads = torch.get_num_threads()
    numba.set_num_threads(1)  # changes the count in the library shared with torch
    torch.set_num_threads(num_threads)


def num_threads() -> int:
    """What to hand a loop that this thread calls; makes numba wake no more."""
    count = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)  # pyright: ignore
    numba.set_num_threads(count)
    return count
