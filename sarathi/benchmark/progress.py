"""A progress bar on the terminal. Knows nothing of what progresses."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress_bar(total: int, label: str, unit: str, *, enabled: bool = True) -> Iterator[Callable[[int], None]]:
    """A bar on stderr; what it yields takes the number of `unit`s that are done. Lines logged meanwhile stand above it.

    Drawn from the first such number on, so that an error before it stands alone. Without tqdm there is no bar.
    """
    if not enabled or importlib.util.find_spec("tqdm") is None:
        yield lambda num_done: None
        return
    from tqdm.contrib.logging import logging_redirect_tqdm

    bar: Any = None

    def update(num_done: int) -> None:
        nonlocal bar
        if bar is None:
            bar = _open_bar(total, label, unit)
        bar.update(num_done - bar.n)

    try:
        with logging_redirect_tqdm():
            yield update
    finally:
        if bar is not None:
            bar.close()


def _open_bar(total: int, label: str, unit: str) -> Any:
    from tqdm import tqdm

    interval = 0.1 if sys.stderr.isatty() else 5.0
    return tqdm(total=total, desc=label, unit=unit, mininterval=interval, file=sys.stderr)
