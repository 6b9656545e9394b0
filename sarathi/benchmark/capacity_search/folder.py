"""The output folder belongs to one search at a time."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sarathi.errors import FlagError


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Make `folder` and keep other searches out of it, until the end of this process at the latest.

    Raises FlagError where it cannot be written to or another search is at work in it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / "search.lock", "w")
    except OSError as error:
        raise FlagError("output-dir", f"cannot write to {folder} ({error.strerror})") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FlagError(
                "output-dir", f"another search is at work in {folder}; wait for it or take another"
            ) from None
        yield
