"""Real models for tests: tiny random ones that transformers makes, SmolLM2 as transformers sees it, and references."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from sarathi import LLM, RequestOutput, SamplingParams
from sarathi.config import system_config_from
from sarathi.system import load_shared_parts

SIZES: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "initializer_range": 0.2,  # far from uniform, so that greedy tokens do not hang on rounding
}
TINY: dict[str, Any] = {
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=24, head_dim=8)),
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True)),
}


def make_tiny(family: str, folder: Path) -> Any:
    """A random model of the family, seeded, saved in `folder` without a tokenizer; returns transformers' own."""
    torch.manual_seed(1)
    model = TINY[family]().eval()
    model.save_pretrained(folder)
    return model


def load_reference(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def random_prompts(lengths: Sequence[int], vocab_size: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab_size, length).tolist() for length in lengths]


def reference_tokens(model: Any, prompt: list[int], num_tokens: int) -> list[int]:
    """Greedy continuation by transformers, end-of-text ignored."""
    given = torch.tensor([prompt])
    model.generation_config.eos_token_id = None
    tokens = model.generate(
        given,
        attention_mask=torch.ones_like(given),
        do_sample=False,
        max_new_tokens=num_tokens,
        pad_token_id=0,
    )
    return tokens[0, len(prompt) :].tolist()


def greedy(llm: LLM, prompts: Sequence[list[int]], num_tokens: int) -> list[RequestOutput]:
    return llm.generate(prompts, SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True))


SETTINGS: dict[str, Any] = {"num_threads": 1, "dtype": "float32", "num_gpu_blocks": 400, "max_num_seqs": 32}


def make_llm(model: str | Path, chunk_size: int, **settings: Any) -> LLM:
    return LLM(str(model), chunk_size=chunk_size, **(SETTINGS | settings))


def load_parts(model: str, chunk_size: int) -> Any:
    """A model that engines of the same SETTINGS and chunks of up to `chunk_size` tokens can share."""
    return load_shared_parts([system_config_from(model, {**SETTINGS, "chunk_size": chunk_size})])
