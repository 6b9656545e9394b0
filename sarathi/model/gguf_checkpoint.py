"""A GGUF file as a checkpoint: its metadata told as config.json, its tensors under Hugging Face's names."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sarathi.errors import FieldError, shown
from sarathi.model.architecture import Rope
from sarathi.model.gguf_file import GgufFile

# Mistral and Mixtral are of llama.cpp's architecture llama.
_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
ARCHITECTURES = ("llama", "qwen2", "qwen3")
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "block_sparse_moe.gate",
}
_EXPERTS = {"ffn_gate": "w1", "ffn_down": "w2", "ffn_up": "w3"}  # of Mixtral
_ROPE_FACTORS = "rope_freqs.weight"  # Llama 3's scaling, as factors on wavelengths
_LLAMA3_SCALING = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


class GgufCheckpoint:
    """A Checkpoint of a GGUF file. Raises FieldError of `model` for one that cannot be read or is not known."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._file = GgufFile(path)
        self.config = _config(self._file)

    def tensors(self, skip: Container[str] = ()) -> Iterator[tuple[str, Tensor]]:
        for gguf_name in self._file.tensors:
            if gguf_name == _ROPE_FACTORS:
                continue
            for name, index in self._names(gguf_name):
                if name in skip:
                    continue
                tensor = self._file.tensor(gguf_name, index)
                if num_heads := self._num_interleaved_heads(gguf_name):
                    if tensor.shape[0] % (2 * num_heads):
                        what = f"{num_heads} heads do not fit the shape {tuple(tensor.shape)} of {gguf_name}"
                        raise FieldError("model", f"{self.path}: {what}")
                    tensor = _halves(tensor, num_heads)
                yield name, tensor

    def _names(self, gguf_name: str) -> Iterator[tuple[str, int | None]]:
        """Hugging Face's names of a tensor: of each slice with its index, where a file holds all experts in one."""
        *parts, kind = gguf_name.split(".")
        match parts:
            case [part] if part in _TOP:
                yield f"{_TOP[part]}.{kind}", None
                return
            case ["blk", layer, part] if part in _LAYER:
                yield f"model.layers.{layer}.{_LAYER[part]}.{kind}", None
                return
            case ["blk", layer, part] if part.removesuffix("_exps") in _EXPERTS:
                name = _EXPERTS[part.removesuffix("_exps")]
                for expert in range(self._file.tensors[gguf_name].shape[0]):
                    yield f"model.layers.{layer}.block_sparse_moe.experts.{expert}.{name}.{kind}", expert
                return
            case ["blk", layer, part, expert] if part in _EXPERTS:  # files of 2023
                yield f"model.layers.{layer}.block_sparse_moe.experts.{expert}.{_EXPERTS[part]}.{kind}", None
                return
        raise FieldError("model", f"{self.path}: tensor {shown(gguf_name)} belongs to no part of a model known here")

    def _num_interleaved_heads(self, gguf_name: str) -> int:
        """Heads of a tensor whose rotary halves llama.cpp has interleaved: q and k of its architecture llama."""
        if self._file.metadata["general.architecture"] != "llama":
            return 0
        part = gguf_name.split(".")[-2]
        return {"attn_q": self.config["num_attention_heads"], "attn_k": self.config["num_key_value_heads"]}.get(part, 0)


def _halves(tensor: Tensor, num_heads: int) -> Tensor:
    """Undo llama.cpp's order of a head's rows, (x0, y0, x1, y1, ...): back to all x, then all y."""
    pairs = tensor.view(num_heads, tensor.shape[0] // num_heads // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)


def _config(file: GgufFile) -> dict[str, Any]:
    """The metadata under the names of config.json."""
    arch = file.get("general.architecture", str)
    if arch not in ARCHITECTURES:
        allowed = f"one of {', '.join(ARCHITECTURES)}"
        raise FieldError("model", f"{file.path}: general.architecture {shown(arch)} is not supported; {allowed}")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise FieldError("model", f"{file.path} lacks the tensor token_embd.weight")
    num_heads = file.get(f"{arch}.attention.head_count", int)
    num_kv_heads = file.get(f"{arch}.attention.head_count_kv", int, num_heads)
    hidden_size = file.get(f"{arch}.embedding_length", int)
    if num_heads < 1 or num_kv_heads < 1:
        raise FieldError("model", f"{file.path}: {num_heads} heads and {num_kv_heads} KV heads are not allowed")
    num_experts = file.get(f"{arch}.expert_count", int, 0)
    window = file.get(f"{arch}.attention.sliding_window", int, 0) if arch == "llama" else 0
    model_type = "mixtral" if num_experts else "mistral" if window else arch
    config: dict[str, Any] = {
        "architectures": [_CLASSES[model_type]],
        "model_type": model_type,
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden_size,
        "intermediate_size": file.get(f"{arch}.feed_forward_length", int),
        "num_hidden_layers": file.get(f"{arch}.block_count", int),
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": file.get(f"{arch}.attention.key_length", int, hidden_size // num_heads),
        "max_position_embeddings": file.get(f"{arch}.context_length", int),
        "rms_norm_eps": file.get(f"{arch}.attention.layer_norm_rms_epsilon", float),
        "rope_theta": file.get(f"{arch}.rope.freq_base", float, 10000.0),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        if (token_id := file.metadata.get(f"tokenizer.ggml.{key}_token_id")) is not None:
            config[f"{name}_token_id"] = token_id
    if num_experts:
        config["num_local_experts"] = num_experts
        config["num_experts_per_tok"] = file.get(f"{arch}.expert_used_count", int)
    if window:
        config["sliding_window"] = window
    if model_type == "llama" and "blk.0.attn_q.bias" in file.tensors:
        config["attention_bias"] = True
    if scaling := _rope_scaling(file, arch, config):
        config["rope_scaling"] = scaling
    return config


def _rope_scaling(file: GgufFile, arch: str, config: dict[str, Any]) -> dict[str, Any] | None:
    dims = file.get(f"{arch}.rope.dimension_count", int, config["head_dim"])
    if dims != config["head_dim"]:
        raise FieldError(
            "model", f"{file.path}: rotary embedding of {dims} of a head's {config['head_dim']} dimensions"
        )
    kind = file.get(f"{arch}.rope.scaling.type", str, "none")
    if kind == "linear":
        return {"rope_type": "linear", "factor": file.get(f"{arch}.rope.scaling.factor", float)}
    if kind != "none":
        raise FieldError("model", f"{file.path}: rope scaling {shown(kind)} is not supported; none or linear")
    if _ROPE_FACTORS not in file.tensors:
        return None
    # The file keeps the outcome of Llama 3's rule, not its parameters: all published models share the others, and
    # the factor is the largest that comes out.
    factors = file.tensor(_ROPE_FACTORS).float()
    scaling = {"rope_type": "llama3", "factor": round(float(factors.max()), 3), **_LLAMA3_SCALING}
    rope = Rope(config["rope_theta"], "llama3", scaling["factor"], *_LLAMA3_SCALING.values())
    plain = Rope(config["rope_theta"])
    expected = plain.inverse_frequencies(config["head_dim"]) / rope.inverse_frequencies(config["head_dim"])
    if (
        factors.shape != expected.shape
        or not math.isfinite(scaling["factor"])
        or not torch.allclose(factors, expected, rtol=1e-3)
    ):
        raise FieldError("model", f"{file.path}: {_ROPE_FACTORS} is not Llama 3's scaling, the only one supported")
    return scaling
