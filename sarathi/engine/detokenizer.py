"""Token ids to text, a few at a time: nothing that a later token could change is ever given out.

Knows no requests and no tokenizer package: only an object that decodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"
MAX_HELD = 3  # of the at most four bytes of a character: tokens, or U+FFFD that decoders make of incomplete bytes


class Decoder(Protocol):
    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool, /) -> str:
        """Text; bytes that are no character become U+FFFD."""
        ...


class Detokenizer:
    """The text of a growing list of token ids; what `text` holds once never changes.

    New tokens are decoded after those that gave the text before them, and the difference is taken: decoders may treat
    the first token in a special way (SentencePiece's lose its leading space). Tokens whose bytes are no whole
    character yet are held back. The cost of a token does not depend on how many came before, but for runs of tokens
    that show nothing at the very start and runs of broken bytes.

    At the end `text` is what the decoder makes of all tokens at once. One exception: byte-fallback decoders turn a
    run of byte tokens into U+FFFD altogether if any of it is broken; characters of it that were complete stay then.
    """

    def __init__(self, decoder: Decoder, skip_special_tokens: bool) -> None:
        self.text = ""
        self.num_tokens = 0  # tokens whose text is complete
        self._decoder = decoder
        self._skip_special_tokens = skip_special_tokens
        self._context: Sequence[int] = ()  # the last tokens that gave text
        self._context_text = ""
        self._num_ahead = 0  # characters of `text` that later tokens than `num_tokens` gave

    def feed(self, token_ids: Sequence[int], flush: bool = False) -> None:
        """Take in what is new in `token_ids`, all tokens so far. `flush`: none will follow, so hold nothing back."""
        start, end = self.num_tokens, len(token_ids)
        for stop in range(end, max(start, end - MAX_HELD - 1), -1):
            new = self._decode_after_context(token_ids[start:stop])
            if flush or not new.endswith(REPLACEMENT):
                self._take(token_ids[start:stop], new, flush)
                break
        if self.num_tokens < end:
            # Such tokens may hold characters before those bytes, and the bytes may be broken for good.
            new = self._decode_after_context(token_ids[self.num_tokens :])
            new = new[: max(len(new.rstrip(REPLACEMENT)), len(new) - MAX_HELD)]
            self.text += new[self._num_ahead :]
            self._num_ahead = max(self._num_ahead, len(new))

    def _decode_after_context(self, token_ids: Sequence[int]) -> str:
        text = self._decode([*self._context, *token_ids])
        if text.startswith(self._context_text):
            return text[len(self._context_text) :]
        return self._decode(token_ids)  # broken bytes changed what a byte-fallback decoder makes of those before

    def _take(self, token_ids: Sequence[int], text: str, flush: bool) -> None:
        self.text += text[self._num_ahead :]
        self.num_tokens += len(token_ids)
        self._num_ahead = 0
        if flush:
            return
        if text:
            self._context = token_ids
        elif not self._context_text:  # a lone space that was dropped as the first
            self._context = [*self._context, *token_ids]
        else:
            return
        self._context_text = self._decode(self._context)

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._decoder.decode(token_ids, self._skip_special_tokens)


def find_stop(text: str, stops: Sequence[str], start: int) -> tuple[int, str] | None:
    """The stop string that begins first, of those that end after `start`: where it begins, and which.

    Where two begin at the same place it is the shorter, as it would be with one token a character.
    """
    found = [(at, len(stop), stop) for stop in stops if (at := text.find(stop, max(0, start - len(stop) + 1))) >= 0]
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
