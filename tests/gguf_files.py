"""Small GGUF files for tests: written by the gguf package, named by its own tables, ordered as llama.cpp orders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

Kind = gguf.GGMLQuantizationType
ARCHITECTURES = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}
MIXTRAL_EXPERTS = {"w1": "ffn_gate_exps", "w2": "ffn_down_exps", "w3": "ffn_up_exps"}


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray | tuple[np.ndarray, gguf.GGMLQuantizationType]] | None = None,
    arch: str = "llama",
) -> Path:
    """`tensors` are float32, or bytes with the type that they encode."""
    writer = gguf.GGUFWriter(path, arch)
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for name, tensor in (tensors or {}).items():
        data, kind = tensor if isinstance(tensor, tuple) else (tensor, None)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def model_metadata(config: Mapping[str, Any], arch: str) -> dict[str, Any]:
    """The metadata that llama.cpp's converter writes for a config.json."""
    metadata: dict[str, Any] = {
        f"{arch}.block_count": config["num_hidden_layers"],
        f"{arch}.context_length": config["max_position_embeddings"],
        f"{arch}.embedding_length": config["hidden_size"],
        f"{arch}.feed_forward_length": config["intermediate_size"],
        f"{arch}.attention.head_count": config["num_attention_heads"],
        f"{arch}.attention.head_count_kv": config["num_key_value_heads"],
        f"{arch}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        f"{arch}.attention.key_length": config["head_dim"],
        f"{arch}.rope.freq_base": config["rope_theta"],
    }
    if "num_local_experts" in config:
        metadata[f"{arch}.expert_count"] = config["num_local_experts"]
        metadata[f"{arch}.expert_used_count"] = config["num_experts_per_tok"]
    return metadata


def model_tensors(
    tensors: Iterable[tuple[str, torch.Tensor]], config: Mapping[str, Any], arch: str
) -> dict[str, np.ndarray]:
    """Hugging Face's tensors under GGUF's names; q and k of llama interleaved, a layer's experts in one."""
    table = gguf.get_tensor_name_map(ARCHITECTURES[arch], config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    written: dict[str, np.ndarray] = {}
    experts: dict[str, list[np.ndarray]] = {}
    for name, tensor in tensors:
        array = tensor.numpy()
        stem, kind = name.rsplit(".", 1)
        part = stem.rsplit(".", 1)[-1]
        if arch == "llama" and part in heads:  # as LlamaModel.permute of llama.cpp's converter
            array = array.reshape(heads[part], 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        if part in MIXTRAL_EXPERTS:
            layer = name.split(".")[2]
            experts.setdefault(f"blk.{layer}.{MIXTRAL_EXPERTS[part]}.{kind}", []).append(array)
            continue
        gguf_name = table.get_name(stem)
        assert gguf_name is not None, name
        written[f"{gguf_name}.{kind}"] = np.ascontiguousarray(array)
    return written | {name: np.stack(arrays) for name, arrays in experts.items()}


def byte_level_vocabulary(merges: Iterable[str] = ()) -> list[str]:
    """The 256 bytes as GPT-2 spells them, then what each merge makes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spelled = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        spelled.setdefault(byte, chr(256 + len(spelled) - len(printable)))
    return [*(spelled[byte] for byte in range(256)), *dict.fromkeys(merge.replace(" ", "") for merge in merges)]
