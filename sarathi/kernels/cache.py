"""Machine code of compiled loops, kept on disk by numba and used again as long as none of their sources has changed."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

logger = logging.getLogger(__name__)


def compiled(**options: Any) -> Callable[[Callable[..., None]], Any]:
    """numba.njit(cache=True, **options), whose key covers every file of this package beside the function's own.

    numba looks at the function's own file alone, though code of others is compiled into it.
    """

    def compile_and_keep(function: Callable[..., None]) -> Any:
        function.__qualname__ += f"-{_digest()}"  # numba names the files of its cache after it
        try:
            return numba.njit(cache=True, **options)(function)
        except RuntimeError:  # numba finds no folder that it may write
            _warn_once()
            return numba.njit(**options)(function)

    return compile_and_keep


@functools.cache
def _digest() -> str:
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()[:16]


@functools.cache
def _warn_once() -> None:
    logger.warning(
        "compiled loops are compiled anew at each start: neither %s nor the home folder can be written, and "
        "NUMBA_CACHE_DIR names no other",
        Path(__file__).parent,
    )
