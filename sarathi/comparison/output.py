"""Where a comparison's files go. Knows paths, neither runs nor what is written."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from sarathi.errors import InputError
from sarathi.metrics.sinks import write_text


def target_of(path: Path) -> Path:
    """The regular file, there or not, that writing to `path` is about; symlinks are followed.

    Raises InputError, one line, where that is something else or cannot be written.
    """
    target = Path(os.path.realpath(path))
    try:
        for place in (path, target):  # not the same for what lies in /proc
            with contextlib.suppress(FileNotFoundError):
                mode = os.stat(place).st_mode
                if not stat.S_ISREG(mode):
                    kind = "is a folder" if stat.S_ISDIR(mode) else "is a device, a pipe or a socket"
                    raise InputError(f"{path} {kind}, not a file that can be replaced")
        folder = next(parent for parent in target.parents if os.path.exists(parent))
        longest = max(len(os.fsencode(name)) for name in _part_of(target).relative_to(folder).parts)
        if longest > os.pathconf(folder, "PC_NAME_MAX"):
            raise InputError(f"{path} cannot be written (file name too long)")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise InputError(f"{path} cannot be written (no permission in {folder})")
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror})") from None
    return target


def are_apart(first: Path, second: Path) -> bool:
    """Whether both targets can be written: neither is the other, a folder of it, or what it is called meanwhile."""
    return first not in _needed(second) and second not in _needed(first)


def _needed(path: Path) -> tuple[Path, ...]:
    return (path, *path.parents, _part_of(path))


def write_files(texts: Sequence[tuple[Path, str]]) -> None:
    """Write each text to its target, all folders first. Raises InputError, one line, where a folder cannot be."""
    for path, _ in texts:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{path} cannot be written ({error.strerror})") from None
    for path, text in texts:
        write_text(path, text)


def _part_of(path: Path) -> Path:
    """What `write_text` writes before it takes the name of `path`."""
    return path.with_name(path.name + ".part")
