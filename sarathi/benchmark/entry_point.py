"""How the benchmark's commands end: exit status, and one line on stderr for whatever is not a fault of ours."""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from sarathi.errors import InputError, WorkerLostError, one_line

# Exit statuses: argparse's for the second, and those of a process that SIGINT or SIGPIPE ended.
CANNOT_WRITE, WORKER_LOST, BAD_SETTING, INTERRUPTED, BROKEN_PIPE = 1, 1, 2, 130, 141

logger = logging.getLogger(__name__)


class CommandParser(argparse.ArgumentParser):
    """What it cannot parse is an InputError, for `exit_status` to tell in one line."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message)


def exit_status(command: Callable[[], None]) -> int:
    """Run `command`; an InputError is BAD_SETTING. A crash passes through, with the traceback that its repair needs."""
    for name in ("stdout", "stderr"):  # None where the shell closed it
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: names of files may hold anything
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        try:
            command()
        finally:
            print(end="", flush=True)  # a reader that went away shows here, not when the interpreter ends
    except InputError as error:
        logger.debug("where the error arose", exc_info=True)
        print(f"error: {error}", file=sys.stderr)
        return BAD_SETTING
    except WorkerLostError as lost:
        print(f"error: {_with_notes(str(lost), lost)}", file=sys.stderr)
        return WORKER_LOST
    except KeyboardInterrupt as interrupt:
        print(_with_notes("interrupted", interrupt), file=sys.stderr)
        logging.disable()  # what libraries have to say when an import that was broken off is taken down
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return BROKEN_PIPE
    except OSError as error:  # what cannot be read is an InputError before it comes here
        logger.debug("where the error arose", exc_info=True)
        _drop_output()
        what = f"cannot write {error.filename or 'output'} ({error.strerror or error})"
        print(one_line(f"error: {_with_notes(what, error)}"), file=sys.stderr)
        return CANNOT_WRITE
    return 0


def _with_notes(text: str, error: BaseException) -> str:
    return "; ".join([text, *getattr(error, "__notes__", ())])


def _drop_output() -> None:
    """What standard output still holds is not written when the interpreter ends, where that fails again."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError):  # of a stream without a file
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
