"""The tokenizer inside a GGUF file, as one of transformers'.

Byte-level BPE with a known way of splitting text is built here from the metadata, in a tenth of the time that
transformers' own conversion takes; all others go through that conversion.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sarathi.model.gguf_file import GgufFile, open_gguf

# How text is split before merging, by tokenizer.ggml.pre: digits one by one, or not.
_SINGLE_DIGITS = {"smollm": True, "gpt-2": False, "gpt2": False}
_CONTROL, _USER_DEFINED = 3, 4  # of tokenizer.ggml.token_type


def gguf_tokenizer(path: Path) -> Any:
    """A PreTrainedTokenizerFast with special tokens and chat template."""
    file = open_gguf(path)
    if file.get("tokenizer.ggml.model") == "gpt2" and file.get("tokenizer.ggml.pre") in _SINGLE_DIGITS:
        return _byte_level(file, _SINGLE_DIGITS[file.get("tokenizer.ggml.pre")])
    from transformers import AutoTokenizer

    backend = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    backend.chat_template = file.get("tokenizer.chat_template") or backend.chat_template
    return backend


def _byte_level(file: GgufFile, single_digits: bool) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokens: list[str] = file.need("tokenizer.ggml.tokens")
    kinds: list[int] = file.get("tokenizer.ggml.token_type", [1] * len(tokens))
    merges = [tuple(merge.split(" ", 1)) for merge in file.need("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = [pre_tokenizers.Digits(individual_digits=True)] if single_digits else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    for special, kind in ((True, _CONTROL), (False, _USER_DEFINED)):
        added = [
            AddedToken(t, special=special, normalized=False) for t, k in zip(tokens, kinds, strict=True) if k == kind
        ]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)
    names: dict[str, str] = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token_id = file.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None and token_id < len(tokens):
            names[f"{name}_token"] = tokens[token_id]
    if file.get("tokenizer.ggml.add_bos_token", False) and "bos_token" in names:
        bos = names["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokens.index(bos))]
        )
    backend = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **names)
    backend.chat_template = file.get("tokenizer.chat_template")
    return backend
