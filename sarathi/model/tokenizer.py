"""Text to token ids and back, and chat templates, over transformers' tokenizers. Nothing is fetched from a hub."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sarathi.errors import FieldError
from sarathi.model.checkpoint import find_model, read_json

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


class Tokenizer:
    """A model's tokenizer.

    `eos_token_ids` are all tokens that end an answer: generation_config.json or config.json may name several.
    """

    def __init__(self, backend: Any, eos_token_ids: Iterable[int]) -> None:
        self.backend = backend  # transformers' own
        self.eos_token_ids = tuple(eos_token_ids)
        self.vocab_size: int = len(backend)
        self._fast = backend.backend_tokenizer

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids; special tokens around the text are those that the model was trained with."""
        return self.backend.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text; bytes that are no character become U+FFFD."""
        return self._fast.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation, {"role": ..., "content": ...} each, with the start of an answer at the end.

        Raises ValueError for messages that the template refuses, and a model without a template.
        """
        if not self.backend.chat_template:
            raise ValueError("chat: the model has no chat template")
        for message in messages:
            if not (isinstance(message, Mapping) and "role" in message and "content" in message):
                raise ValueError(f"chat: {message!r} is not allowed; messages with role and content")
        try:
            text = self.backend.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template may raise anything
            raise ValueError(f"chat: the model's template refuses the messages ({error})") from error
        return self.encode(text, add_special_tokens=False)


def load_tokenizer(model: str) -> Tokenizer | None:
    """The tokenizer of a folder or GGUF file, None where a folder has none.

    Raises FieldError of `model` for one that cannot be read.
    """
    path = find_model(model)
    if path.suffix != ".gguf" and not any((path / name).is_file() for name in TOKENIZER_FILES):
        return None
    from transformers import AutoTokenizer

    try:
        if path.suffix == ".gguf":
            from sarathi.model.gguf_tokenizer import gguf_tokenizer

            backend = gguf_tokenizer(path)
        else:
            backend = AutoTokenizer.from_pretrained(path, local_files_only=True, use_fast=True)
    except FieldError:
        raise
    except Exception as error:  # transformers raises whatever a broken file makes of it
        raise FieldError("model", f"the tokenizer of {path} cannot be read ({error})") from error
    if not hasattr(backend, "backend_tokenizer"):
        raise FieldError("model", f"{path} has a tokenizer in Python only; one with a tokenizer.json is needed")
    return Tokenizer(backend, eos_token_ids(path) or _ids(backend.eos_token_id))


def eos_token_ids(path: Path) -> tuple[int, ...]:
    """The ids that end generation, as generation_config.json or else config.json, or a GGUF file's metadata, say."""
    if path.suffix == ".gguf":
        from sarathi.model.gguf_file import open_gguf

        file = open_gguf(path)
        keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
        return tuple(dict.fromkeys(i for key in keys for i in _ids(file.get(key))))
    for name in ("generation_config.json", "config.json"):
        if (path / name).is_file() and (found := _ids(read_json(path / name).get("eos_token_id"))):
            return found
    return ()


def _ids(value: object) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(int(i) for i in values if isinstance(i, int) and not isinstance(i, bool))
