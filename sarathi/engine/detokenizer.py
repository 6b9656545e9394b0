"""Token ids to text, a few at a time: nothing that a later token could change is ever given out.

Knows no requests and no tokenizer package: only an object that decodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"
MAX_HELD = 3  # tokens: a character has at most four bytes, so one that is not whole after three is whole with the next


class Decoder(Protocol):
    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str: ...


class Detokenizer:
    """The text of a growing list of token ids.

    Only a short window is decoded for new tokens: from the start of the tokens before, so that decoders which treat
    the first token in a special way (SentencePiece drops its leading space) do so in both of two texts whose
    difference is taken. Tokens at the end whose bytes are no whole character yet are held back.
    """

    def __init__(self, decoder: Decoder, skip_special_tokens: bool) -> None:
        self._decoder = decoder
        self._skip_special_tokens = skip_special_tokens
        self.text = ""
        self.num_tokens = 0  # whose text is in `text`
        self._window = 0  # index of the first token that is decoded again

    def feed(self, token_ids: Sequence[int], flush: bool = False) -> None:
        """Take in all that is new in `token_ids`, every token so far; `flush`: nothing will follow, hold nothing."""
        end = len(token_ids)
        if end == self.num_tokens:
            return
        new = self._decode(token_ids, end)
        if new.endswith(REPLACEMENT) and not flush:
            end -= MAX_HELD
            if end <= self.num_tokens:
                return
            new = self._decode(token_ids, end)
        self.text += new[len(self._decode(token_ids, self.num_tokens)) :]
        self._window, self.num_tokens = self.num_tokens, end

    def _decode(self, token_ids: Sequence[int], end: int) -> str:
        return self._decoder.decode(token_ids[self._window : end], self._skip_special_tokens)


def find_stop(text: str, stops: Sequence[str], start: int) -> tuple[int, str] | None:
    """Where the earliest stop string begins that ends after `start`, and which; the longest of those there."""
    found = [(at, -len(stop), stop) for stop in stops if (at := text.find(stop, max(0, start - len(stop) + 1))) >= 0]
    if not found:
        return None
    at, _, stop = min(found)
    return at, stop


def num_held_back(text: str, stops: Sequence[str]) -> int:
    """Characters at the end of `text` that may be the beginning of a stop string."""
    longest = min(len(text), max(map(len, stops), default=1) - 1)
    for length in range(longest, 0, -1):
        ending = text[-length:]
        if any(stop.startswith(ending) for stop in stops):
            return length
    return 0
