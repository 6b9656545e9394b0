"""The tokenizer inside a GGUF file, as one of the `tokenizers` package.

Byte-level BPE with a known way of splitting text, which is all but the oldest models', is built here from the
metadata in a fraction of a second. The rest goes through transformers' own conversion, which takes seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from sarathi.model.gguf_file import GgufFile

_CONTROL, _USER_DEFINED = 3, 4  # of tokenizer.ggml.token_type
_SPECIAL_TOKENS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
# Tokens that end an answer: of a text, of a turn, of a message that calls a tool.
_EOS_KEYS = ("eos", "eot", "eom")
_PUNCTUATION_AND_SPACE = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"


class _Splitting(NamedTuple):
    """How a vocabulary's text is cut before its bytes are merged."""

    pattern: str | None = None  # None: GPT-2's
    single_digits: bool = False  # cut out first, digit by digit
    nfc: bool = False  # Unicode composed before
    ignore_merges: bool = False  # a piece that is a token stays whole, whatever the merges would make of it
    adds_bos: bool = False  # where the file does not say


_LLAMA3 = _Splitting(_WORDS + r"|\p{N}{1,3}" + _PUNCTUATION_AND_SPACE, ignore_merges=True, adds_bos=True)
_QWEN2 = _Splitting(_WORDS + r"|\p{N}" + _PUNCTUATION_AND_SPACE, nfc=True)
# By tokenizer.ggml.pre, each as the model's own tokenizer.json has it.
SPLITTINGS = {
    "smollm": _Splitting(single_digits=True),
    "gpt-2": _Splitting(),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}


def build_tokenizer(file: GgufFile) -> Tokenizer:
    """Raises FieldError of `model` for a file without a tokenizer, and whatever transformers' conversion raises."""
    kind = file.get("tokenizer.ggml.model", str)
    splitting = SPLITTINGS.get(file.get("tokenizer.ggml.pre", str, ""))
    if kind == "gpt2" and splitting is not None:
        return _byte_level(file, splitting)
    from transformers import AutoTokenizer

    path = Path(file.path)
    converted: Any = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    return converted.backend_tokenizer


def special_tokens(file: GgufFile) -> dict[str, str]:
    """The file's tokens with a role, under transformers' names: bos_token, eos_token, unk_token, pad_token."""
    tokens = file.get("tokenizer.ggml.tokens", list)
    ids = {name: file.metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in _SPECIAL_TOKENS.items()}
    return {name: tokens[i] for name, i in ids.items() if type(i) is int and i < len(tokens)}


def eos_token_ids_of(file: GgufFile) -> tuple[int, ...]:
    ids = (file.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in _EOS_KEYS)
    return tuple(dict.fromkeys(token_id for token_id in ids if type(token_id) is int))


def _byte_level(file: GgufFile, splitting: _Splitting) -> Tokenizer:
    tokens = file.get("tokenizer.ggml.tokens", list)
    merges = [tuple(merge.split(" ", 1)) for merge in file.get("tokenizer.ggml.merges", list)]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=splitting.ignore_merges))
    if splitting.nfc:
        tokenizer.normalizer = normalizers.NFC()
    steps: list[Any] = []
    if splitting.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if splitting.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(splitting.pattern), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splitting.pattern is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    kinds = file.get("tokenizer.ggml.token_type", list, [])
    for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        added = [
            AddedToken(token, special=special, normalized=False)
            for token, token_kind in zip(tokens, kinds, strict=False)
            if token_kind == kind
        ]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)
    around = _around(file, splitting)
    if around is not None:
        tokenizer.post_processor = around
    return tokenizer


def _around(file: GgufFile, splitting: _Splitting) -> processors.TemplateProcessing | None:
    """Adds the beginning and end of text where the model was trained with them."""
    special = special_tokens(file)
    adds = {
        "bos_token": file.get("tokenizer.ggml.add_bos_token", bool, splitting.adds_bos),
        "eos_token": file.get("tokenizer.ggml.add_eos_token", bool, False),
    }
    used = {name: special[name] for name, is_added in adds.items() if is_added and name in special}
    if not used:
        return None
    bos, eos = ([used[name]] if name in used else [] for name in ("bos_token", "eos_token"))
    ids = {token: file.metadata[f"tokenizer.ggml.{_SPECIAL_TOKENS[name]}_token_id"] for name, token in used.items()}
    one, two = [*bos, "$A", *eos], [*bos, "$B:1", *eos]
    return processors.TemplateProcessing(single=one, pair=[*one, *two], special_tokens=list(ids.items()))
