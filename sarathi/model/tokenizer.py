"""Text to token ids and back, and chat templates. Nothing is fetched from a hub.

Text goes through the `tokenizers` package alone; transformers, slow to import, renders chats, and reads what a
Hugging Face folder holds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from sarathi.errors import FieldError, one_line, shown
from sarathi.model.checkpoint import find_model, read_json

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


class Tokenizer:
    """A model's tokenizer.

    Args:
        fast: what encodes and decodes.
        eos_token_ids: all tokens that end an answer: generation_config.json or config.json may name several.
        make_backend: transformers' tokenizer of the same, made when it is first needed.
    """

    def __init__(
        self, fast: tokenizers.Tokenizer, eos_token_ids: Iterable[int], make_backend: Callable[[], Any]
    ) -> None:
        fast.no_truncation()  # as transformers does: some files ask for both
        fast.no_padding()
        self._fast = fast
        self._make_backend = make_backend
        self.eos_token_ids = tuple(eos_token_ids)
        self.vocab_size = fast.get_vocab_size(with_added_tokens=True)

    @functools.cached_property
    def backend(self) -> Any:
        """transformers' tokenizer, with the chat template."""
        return self._make_backend()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids; special tokens around the text are those that the model was trained with."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"prompt: not allowed; a surrogate without its half at character {error.start}") from None
        return self._fast.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text; bytes that are no character become U+FFFD."""
        return self._fast.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation, {"role": ..., "content": ...} each, with the start of an answer at the end.

        Raises ValueError for messages that the template refuses, and a model without a template.
        """
        if not self.backend.chat_template:
            raise ValueError("chat: the model has no chat template")
        if not isinstance(messages, (list, tuple)):
            raise ValueError(f"chat: {shown(messages)} is not allowed; a list of messages")
        for message in messages:
            if not (isinstance(message, Mapping) and "role" in message and "content" in message):
                raise ValueError(f"chat: {shown(message)} is not allowed; messages with role and content")
        try:
            text = self.backend.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template may raise anything
            raise ValueError(one_line(f"chat: the model's template refuses the messages ({error})")) from error
        return self.encode(text, add_special_tokens=False)


def load_tokenizer(model: str) -> Tokenizer | None:
    """The tokenizer of a folder or GGUF file, None where there is none.

    Raises FieldError of `model` for one that cannot be read.
    """
    path = find_model(model)
    try:
        if path.suffix == ".gguf":
            return _load_gguf(path)
        if any((path / name).is_file() for name in TOKENIZER_FILES):
            return _load_folder(path)
    except FieldError:
        raise
    except Exception as error:  # both packages raise whatever a broken file makes of them
        raise FieldError("model", f"the tokenizer of {path} cannot be read ({error})") from error
    return None


def _load_folder(path: Path) -> Tokenizer:
    from transformers import AutoTokenizer

    backend: Any = AutoTokenizer.from_pretrained(path, local_files_only=True, use_fast=True)
    if not hasattr(backend, "backend_tokenizer"):
        raise FieldError("model", f"{path} has a tokenizer in Python only; one with a tokenizer.json is needed")
    # Chat models are often told their end of a turn by the tokenizer's files alone.
    eos = dict.fromkeys((*eos_token_ids(path), *_ids(backend.eos_token_id)))
    return Tokenizer(backend.backend_tokenizer, eos, lambda: backend)


def _load_gguf(path: Path) -> Tokenizer | None:
    from sarathi.model.gguf_file import GgufFile
    from sarathi.model.gguf_tokenizer import build_tokenizer, eos_token_ids_of, special_tokens

    file = GgufFile(path)
    if "tokenizer.ggml.model" not in file.metadata:
        return None
    fast, special = build_tokenizer(file), special_tokens(file)
    chat_template = file.get("tokenizer.chat_template", str, "")
    context = file.metadata.get(f"{file.metadata.get('general.architecture')}.context_length")

    def make_backend() -> Any:
        from transformers import PreTrainedTokenizerFast

        backend = PreTrainedTokenizerFast(
            tokenizer_object=fast, clean_up_tokenization_spaces=False, model_max_length=context, **special
        )
        backend.chat_template = chat_template or None
        return backend

    return Tokenizer(fast, eos_token_ids_of(file), make_backend)


def eos_token_ids(path: Path) -> tuple[int, ...]:
    """The ids that end generation, as generation_config.json or else config.json, or a GGUF file's metadata, say."""
    if path.suffix == ".gguf":
        from sarathi.model.gguf_file import GgufFile
        from sarathi.model.gguf_tokenizer import eos_token_ids_of

        return eos_token_ids_of(GgufFile(path))
    for name in ("generation_config.json", "config.json"):
        if (path / name).is_file() and (found := _ids(read_json(path / name).get("eos_token_id"))):
            return found
    return ()


def _ids(value: object) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(i for i in values if type(i) is int)
