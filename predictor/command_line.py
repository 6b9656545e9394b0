"""What the package's commands share: mistakes told in one line, settings named by their flags, outputs tried first.

Knows no command and no model.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

INTERRUPTED = 130


def exit_status(run: Callable[[], None]) -> int:
    """Call `run`: 0, or after one line on stderr 2 for a mistake, 1 for what the system refused, 130 for Ctrl-C."""
    try:
        run()
    except ValueError as error:
        status, message = 2, f"error: {error}"
    except OSError as error:
        status, message = 1, f"error: {error}"
    except KeyboardInterrupt:
        status, message = INTERRUPTED, "interrupted"
    else:
        return 0
    print(" ".join(message.split()), file=sys.stderr)
    return status


@contextmanager
def settings_named_by_flags(**flags: str) -> Iterator[None]:
    """Turns a ValueError `batch_size: ...` into `--batch-size: ...`; `flags` are those that are called otherwise."""
    try:
        yield
    except ValueError as error:
        name, colon, rest = str(error).partition(":")
        if not colon or not name.isidentifier():
            raise
        raise ValueError(f"--{flags.get(name, name.replace('_', '-'))}:{rest}") from None


def check_writable(flag: str, path: Path) -> None:
    """Make the folder of an output, and raise ValueError naming the flag if the output could not be written."""
    try:
        if path.is_dir():
            raise ValueError(f"{flag}: {path} cannot be written (it is a folder)")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
        if path.exists() and not os.access(path, os.W_OK):
            raise ValueError(f"{flag}: {path} cannot be written (it is read-only)")
    except OSError as error:
        reason = "its folder is a file" if isinstance(error, FileExistsError) else error.strerror or error
        raise ValueError(f"{flag}: {path} cannot be written ({reason})") from None
