"""How a value that is not allowed is told: by its parameter's name from Python, by its flag on the command line.

Knows no setting and no flag by name. Every message is one line.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_SHOWN, MAX_MESSAGE = 200, 1500  # characters, of a value and of a whole message
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = MAX_SHOWN
_REPR.maxlevel = 2


def shown(value: object) -> str:
    """`repr(value)` for a message, cut where it is long; never expanded first, so aliases in YAML cannot explode."""
    try:
        text = _REPR.repr(value)
    except ValueError:  # an integer of more digits than Python prints
        text = f"a value of type {type(value).__name__} with thousands of digits"
    return _cut(text, MAX_SHOWN)


class FieldError(ValueError):
    """A value of the parameter or setting `field` that is not allowed: `field: text`, `owner` before it."""

    def __init__(self, field: str, text: str, owner: str = "") -> None:
        super().__init__(one_line(f"{owner}{field}: {text}"))
        self.field, self.text = field, text


class InputError(ValueError):
    """What a user gave to a command and that it cannot work with: one line, which says it all."""

    def __init__(self, text: str) -> None:
        super().__init__(one_line(text))


class FlagError(InputError):
    """A value that a user gave and that is not allowed: `--key: text`, and the file it stands in, if any."""

    def __init__(self, key: str, text: str, file: str | None = None) -> None:
        super().__init__(f"--{key}: {text}" + (f" (in {file})" if file else ""))


class WorkerLostError(RuntimeError):
    """A worker's process that ended on its own, in one line that names it: no traceback tells more."""


@contextmanager
def naming(prefix: str, field: str | None = None) -> Iterator[None]:
    """Turn what is not allowed inside into a FlagError of `--<prefix>_<field>`.

    A FieldError says its field itself. `field` is for a ValueError that does not; without it such an error passes.
    """
    try:
        yield
    except FieldError as error:
        raise FlagError(f"{prefix}_{error.field}", error.text) from error
    except FlagError:
        raise
    except ValueError as error:
        if field is None:
            raise
        raise FlagError(f"{prefix}_{field}", str(error)) from error


@contextmanager
def told_if_incomplete(path: Path, how: str = "") -> Iterator[None]:
    """Whatever ends the block early says in its last line which folder or file it leaves incomplete, and how."""
    try:
        yield
    except BaseException as error:
        error.add_note("; ".join(filter(None, [f"{path} is incomplete", how])))
        raise


def one_line(text: str) -> str:
    """A message that any terminal takes: without line breaks and halves of characters, cut where it is very long."""
    return _cut(" ".join(text.splitlines()).encode("utf-8", "backslashreplace").decode(), MAX_MESSAGE)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length // 2]} ... {text[-length // 2 + 5 :]}"
