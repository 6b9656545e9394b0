"""How a value that is not allowed is told: by its parameter's name from Python, by its flag on the command line.

Knows no setting and no flag by name. Every message is one line.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class FieldError(ValueError):
    """A value of the parameter or setting `field` that is not allowed: `field: text`, `owner` before it."""

    def __init__(self, field: str, text: str, owner: str = "") -> None:
        super().__init__(_one_line(f"{owner}{field}: {text}"))
        self.field, self.text = field, text


class FlagError(ValueError):
    """A value that a user gave and that is not allowed: `--key: text`, and the file it stands in, if any."""

    def __init__(self, key: str, text: str, file: str | None = None) -> None:
        super().__init__(_one_line(f"--{key}: {text}" + (f" (in {file})" if file else "")))


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


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())
