"""GGUF files: metadata told as a Hugging Face config, tensors dequantised and named as Hugging Face names them.

Reading and dequantising are the `gguf` package's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from sarathi.errors import FieldError

# general.architecture and the model_type that it means.
ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
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
_EXPERTS = {"ffn_gate_exps": "w1", "ffn_down_exps": "w2", "ffn_up_exps": "w3"}
_ROPE_FACTORS = "rope_freqs.weight"  # Llama 3's scaling, as factors on wavelengths


class GgufFile:
    """An open file: metadata by key, tensors by name."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        try:
            self._reader = gguf.GGUFReader(path)
        except Exception as error:  # the package lets what numpy raises on a cut-off file pass
            raise FieldError("model", f"{path} cannot be read as GGUF ({error or type(error).__name__})") from error
        self.quantized_tensors = {tensor.name: tensor for tensor in self._reader.tensors}

    def get(self, key: str, default: Any = None) -> Any:
        field = self._reader.fields.get(key)
        return default if field is None else field.contents()

    def need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise FieldError("model", f"{self.path} lacks the metadata {key}")
        return value

    def tensor(self, name: str) -> np.ndarray:
        """Dequantised, float32 or float16, in the order of Hugging Face's dimensions."""
        tensor = self.quantized_tensors[name]
        try:
            return gguf.dequantize(tensor.data, tensor.tensor_type)
        except (NotImplementedError, ValueError, IndexError) as error:
            kind = tensor.tensor_type.name
            raise FieldError("model", f"{self.path}: {name} of type {kind} cannot be dequantised ({error})") from error


def open_gguf(path: Path) -> GgufFile:
    """The file, read once: parsing a vocabulary takes a second or two, and weights and tokenizer both need it."""
    try:
        status = path.stat()
    except OSError as error:
        raise FieldError("model", f"{path} cannot be read ({error.strerror})") from error
    return _open_gguf(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=1)
def _open_gguf(path: Path, mtime_ns: int, size: int) -> GgufFile:
    return GgufFile(path)


class GgufCheckpoint:
    """A Checkpoint of a GGUF file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._file = open_gguf(path)
        self.config = _config(self._file)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        undo = _permutations(self.config) if self._file.get("general.architecture") == "llama" else {}
        for name in self._file.quantized_tensors:
            if name == _ROPE_FACTORS:
                continue
            for hf_name, array in self._named(name):
                restore = undo.get(hf_name.split(".")[-2])
                array = array if restore is None else restore(array)
                if not (array.flags.writeable and array.flags.c_contiguous):
                    array = array.copy()
                yield hf_name, torch.from_numpy(array)

    def _named(self, name: str) -> Iterator[tuple[str, np.ndarray]]:
        parts = name.split(".")
        kind = parts[-1]
        if parts[0] != "blk" and parts[0] in _TOP and len(parts) == 2:
            yield f"{_TOP[parts[0]]}.{kind}", self._file.tensor(name)
            return
        if parts[0] == "blk" and len(parts) in (4, 5):
            prefix, part = f"model.layers.{parts[1]}", parts[2]
            if part in _EXPERTS:
                for expert, weight in enumerate(self._file.tensor(name)):
                    yield f"{prefix}.block_sparse_moe.experts.{expert}.{_EXPERTS[part]}.{kind}", weight
                return
            if len(parts) == 5 and f"{part}_exps" in _EXPERTS:  # older files: each expert by itself
                yield (
                    f"{prefix}.block_sparse_moe.experts.{parts[3]}.{_EXPERTS[part + '_exps']}.{kind}",
                    self._file.tensor(name),
                )
                return
            if part in _LAYER and len(parts) == 4:
                yield f"{prefix}.{_LAYER[part]}.{kind}", self._file.tensor(name)
                return
        raise FieldError("model", f"{self.path}: tensor {name} belongs to no part of a model that is known here")


def _config(file: GgufFile) -> dict[str, Any]:
    """The metadata under the names of config.json."""
    arch = file.need("general.architecture")
    if arch not in ARCHITECTURES:
        raise FieldError("model", f"{file.path}: architecture {arch!r} is not known; one of {', '.join(ARCHITECTURES)}")
    num_heads = int(file.need(f"{arch}.attention.head_count"))
    hidden_size = int(file.need(f"{arch}.embedding_length"))
    num_experts = int(file.get(f"{arch}.expert_count", 0))
    model_type = "mixtral" if num_experts else ARCHITECTURES[arch]
    vocab_size = file.get(f"{arch}.vocab_size")
    if vocab_size is None:
        embedding = file.quantized_tensors.get("token_embd.weight")
        vocab_size = len(file.need("tokenizer.ggml.tokens")) if embedding is None else embedding.shape[-1]
    config: dict[str, Any] = {
        "architectures": [
            {"llama": "Llama", "mixtral": "Mixtral", "qwen2": "Qwen2", "qwen3": "Qwen3"}[model_type] + "ForCausalLM"
        ],
        "model_type": model_type,
        "vocab_size": int(vocab_size),
        "hidden_size": hidden_size,
        "intermediate_size": int(file.need(f"{arch}.feed_forward_length")),
        "num_hidden_layers": int(file.need(f"{arch}.block_count")),
        "num_attention_heads": num_heads,
        "num_key_value_heads": int(file.get(f"{arch}.attention.head_count_kv", num_heads)),
        "head_dim": int(file.get(f"{arch}.attention.key_length", hidden_size // num_heads)),
        "max_position_embeddings": int(file.need(f"{arch}.context_length")),
        "rms_norm_eps": _rounded(file.need(f"{arch}.attention.layer_norm_rms_epsilon")),
        "rope_theta": float(file.get(f"{arch}.rope.freq_base", 10000.0)),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in file.quantized_tensors,
        "bos_token_id": file.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.get("tokenizer.ggml.eos_token_id"),
    }
    if num_experts:
        config["num_local_experts"] = num_experts
        config["num_experts_per_tok"] = int(file.need(f"{arch}.expert_used_count"))
    scaling = _rope_scaling(file, arch, config)
    return config | ({"rope_scaling": scaling} if scaling else {})


def _rounded(value: float) -> float:
    """A float32 of the file as the number that was meant: 1e-05, not 9.999999747378752e-06."""
    return float(f"{value:.6g}")


def _rope_scaling(file: GgufFile, arch: str, config: dict[str, Any]) -> dict[str, Any] | None:
    kind = file.get(f"{arch}.rope.scaling.type", "none")
    if kind == "linear":
        return {"rope_type": "linear", "factor": float(file.need(f"{arch}.rope.scaling.factor"))}
    if kind != "none":
        raise FieldError("model", f"{file.path}: rope scaling {kind!r} is not supported; none or linear")
    if _ROPE_FACTORS not in file.quantized_tensors:
        return None
    from sarathi.model.architecture import Rope

    # Llama 3's rule, whose factor is the largest of the wavelengths' factors; the other parameters never differ.
    factors = file.tensor(_ROPE_FACTORS).astype(np.float64)
    rope = Rope(config["rope_theta"], "llama3", float(factors.max()), 1.0, 4.0, 8192)
    plain = Rope(config["rope_theta"]).inverse_frequencies(config["head_dim"])
    expected = (plain / rope.inverse_frequencies(config["head_dim"])).numpy()
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
        raise FieldError("model", f"{file.path}: {_ROPE_FACTORS} is not Llama 3's scaling, the only one supported")
    return {
        "rope_type": "llama3",
        "factor": rope.factor,
        "low_freq_factor": rope.low_freq_factor,
        "high_freq_factor": rope.high_freq_factor,
        "original_max_position_embeddings": rope.original_max_position,
    }


def _permutations(config: dict[str, Any]) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """How to undo llama.cpp's interleaving of the rotary halves in q and k of the llama architecture."""

    def undo(num_heads: int) -> Callable[[np.ndarray], np.ndarray]:
        def restore(weight: np.ndarray) -> np.ndarray:
            half = weight.shape[0] // num_heads // 2
            halves = weight.reshape(num_heads, half, 2, *weight.shape[1:]).swapaxes(1, 2)
            return np.ascontiguousarray(halves).reshape(weight.shape)

        return restore

    return {"q_proj": undo(config["num_attention_heads"]), "k_proj": undo(config["num_key_value_heads"])}
