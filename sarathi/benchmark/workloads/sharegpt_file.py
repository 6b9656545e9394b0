"""The ShareGPT JSON format: the whole records of a file that may be dirty or cut off, and the turns in them.

Knows nothing of tokens, settings or arrival times.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

HUMAN_ROLES = frozenset({"human", "user"})
ANSWER_ROLES = frozenset({"gpt", "assistant", "chatgpt", "bing", "bard", "model"})
CONVERSATION_KEYS = ("conversations", "conversation", "messages", "items")

_CHUNK_BYTES = 1 << 20
_OPENING = re.compile(r"[\s\ufeff]*\[?\s*")  # a byte-order mark may open the file
_SEPARATORS = re.compile(r"[\s,]*")
_LINE_OF_A_RECORD = re.compile(r"\n(?=\{)")
UNREADABLE = object()  # in place of a line that is not JSON
_SURROGATES = re.compile("[\ud800-\udfff]")


def _integer(digits: str) -> float:
    """Python reads no integer of more than 4,300 digits, and no number here means anything."""
    return int(digits) if len(digits) < 100 else float(digits)


_DECODER = json.JSONDecoder(strict=False, parse_int=_integer)  # raw control characters inside strings are read


class BrokenFileError(ValueError):
    """The file is cut off, or is not JSON, from the record at byte `offset` on."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"no whole record at byte {offset:,}")
        self.offset = offset


class Record(NamedTuple):
    start: int  # byte offset of its first character
    length: int  # bytes
    value: Any


def iter_records(path: Path, start: int = 0) -> Iterator[Record]:
    """The records of a JSON array (or of JSON lines) from byte `start`, which is 0 or the end of a record.

    Of JSON lines, one that is not JSON and stands before one that is has the value UNREADABLE. Reads the file piece
    by piece and holds one piece. Raises BrokenFileError *after* the last whole record if the file does not end as it
    should, OSError if it cannot be read.
    """
    with path.open("rb") as file:
        is_array = file.read(4096).lstrip(codecs.BOM_UTF8 + b" \t\r\n").startswith(b"[")
        file.seek(start)
        decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        separators = _SEPARATORS if start else _OPENING
        buffer, num_bytes, at_end = "", _CHUNK_BYTES, False
        while not at_end:
            data = file.read(num_bytes)
            at_end = not data
            buffer += decoder.decode(data, final=at_end)
            num_bytes *= 2  # until a record is found, so that retrying one longer than the buffer stays linear
            position = 0  # of the buffer; `start` is the same place in the file
            while True:
                begin = _end_of(separators, buffer, position)
                if is_array and buffer.startswith("]", begin):
                    return
                try:
                    value, end = _DECODER.raw_decode(buffer, begin)
                except (ValueError, RecursionError):
                    value, end = UNREADABLE, 0 if is_array else _next_whole_line(buffer, begin, at_end)
                    if not end:
                        break
                start += _num_bytes(buffer[position:begin])
                length = _num_bytes(buffer[begin:end])
                yield Record(start, length, value)
                start += length
                position, separators, num_bytes = end, _SEPARATORS, _CHUNK_BYTES
            buffer = buffer[position:]
    begin = _end_of(separators, buffer, 0)
    if is_array or begin < len(buffer):
        raise BrokenFileError(start + _num_bytes(buffer[:begin]))


def read_record(path: Path, start: int, length: int) -> Any:
    """The record that `iter_records` found at this place."""
    with path.open("rb") as file:
        file.seek(start)
        return _DECODER.raw_decode(file.read(length).decode("utf-8", "surrogateescape"))[0]


def _next_whole_line(text: str, position: int, at_end: bool) -> int:
    """Where the first line after `position` begins that is an object from one end to the other; 0 if none does."""
    for match in _LINE_OF_A_RECORD.finditer(text, position):
        end_of_line = text.find("\n", match.end())
        if end_of_line < 0 and not at_end:
            break
        try:
            _, end = _DECODER.raw_decode(text, match.end())
        except (ValueError, RecursionError):
            continue
        if end_of_line < 0 or end <= end_of_line:
            return match.end()
    return 0


def _end_of(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    assert match is not None, "the patterns match the empty string"
    return match.end()


def _num_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))


def _turns(record: Any) -> list[tuple[str, str]] | None:
    """(role, stripped text) of each turn, None where the record is no conversation.

    Rows may have from/value, role/content or both; other keys are ignored.
    """
    if not isinstance(record, dict):
        return None
    conversation = next((record[key] for key in CONVERSATION_KEYS if isinstance(record.get(key), list)), None)
    if conversation is None:
        return None
    rows = [row for row in conversation if isinstance(row, dict)]
    return [(_text(row, "from", "role").lower(), _text(row, "value", "content").strip()) for row in rows]


def _text(row: dict[str, Any], *keys: str) -> str:
    return next((row[key] for key in keys if isinstance(row.get(key), str) and row[key]), "")


def answered_turns(record: Any, turns: str) -> tuple[list[tuple[str, str]], str]:
    """(prompt, answer) texts of a conversation, and why there are none, for a count ("1 empty").

    The answer is the turn right after the human one, looking past roles that are neither (system, tool).
    "first": the first human turn alone; if that is empty or has no answer there is nothing.
    "all": every human turn that has an answer, with the texts of all turns before it, one a line.
    """
    if record is UNREADABLE:
        return [], "not JSON"
    rows = _turns(record)
    if rows is None:
        return [], "not a conversation"
    if not rows:
        return [], "empty"
    human_places = [i for i, (role, _) in enumerate(rows) if role in HUMAN_ROLES]
    if not human_places:
        return [], "without a human turn"
    if turns == "first":
        place = human_places[0]
        prompt, answer = rows[place][1], _answer_after(rows, place)
        if not prompt:
            return [], "with an empty first human turn"
        return ([], "with no answer to the first human turn") if answer is None else ([(prompt, answer)], "")
    pairs = []
    for place in human_places:
        answer = _answer_after(rows, place)
        if rows[place][1] and answer is not None:
            pairs.append(("\n".join(text for _, text in rows[: place + 1] if text), answer))
    return pairs, "" if pairs else "without an answered human turn"


def _answer_after(rows: list[tuple[str, str]], place: int) -> str | None:
    for role, text in rows[place + 1 :]:
        if role in ANSWER_ROLES:
            return text
        if role in HUMAN_ROLES:
            return None
    return None


def without_surrogates(text: str) -> str:
    """`text` with U+FFFD for what is not a character: bytes that are not UTF-8, lone \\ud800 escapes."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)
