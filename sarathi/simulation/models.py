"""The shape of a decoder-only transformer: its sizes, and the bytes of weights and KV cache that follow from them.

Knows nothing about devices or time. Holds no weights and never loads any.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sarathi.errors import FieldError, shown

MAX_SIZE = 10**9  # of any size in a config.json


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a Llama-like model (gated MLP, grouped-query attention), optionally a mixture of experts.

    With `num_experts` > 0 every layer routes each token to `experts_per_token` experts of `moe_intermediate_size`.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_model_len: int
    tied_embeddings: bool = False
    num_experts: int = 0
    experts_per_token: int = 0
    moe_intermediate_size: int = 0

    def __post_init__(self) -> None:
        for field in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "intermediate_size",
                      "vocab_size", "max_model_len"):  # fmt: skip
            if getattr(self, field) < 1:
                raise ValueError(f"model {self.name}: {field} {getattr(self, field)} is not allowed; at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"model {self.name}: num_kv_heads {self.num_kv_heads} must divide num_heads {self.num_heads}"
            )
        if self.num_experts and not 1 <= self.experts_per_token <= self.num_experts:
            raise ValueError(
                f"model {self.name}: experts_per_token {self.experts_per_token} is not allowed; "
                f"1 to num_experts {self.num_experts}"
            )
        if self.num_experts and self.moe_intermediate_size < 1:
            raise ValueError(
                f"model {self.name}: moe_intermediate_size {self.moe_intermediate_size} is not allowed; at least 1"
            )

    def check_parallel(self, tensor_parallel_size: int, pipeline_parallel_size: int) -> None:
        """Raise FieldError unless heads, MLP and layers split evenly over the ranks."""
        tp, pp = tensor_parallel_size, pipeline_parallel_size
        for name, size in (("tensor_parallel_size", tp), ("pipeline_parallel_size", pp)):
            if size < 1:
                raise FieldError(name, f"{size} is not allowed; at least 1")
        if refusal := self._refuse_tensor_parallel(tp):
            sizes = [size for size in range(1, self.num_heads + 1) if not self._refuse_tensor_parallel(size)]
            raise FieldError("tensor_parallel_size", f"{tp} {refusal} of {self.name}; {_one_of(sizes)}")
        if self.num_layers % pp:
            sizes = [size for size in range(1, self.num_layers + 1) if not self.num_layers % size]
            what = f"{pp} does not divide the {self.num_layers} layers of {self.name}"
            raise FieldError("pipeline_parallel_size", f"{what}; {_one_of(sizes)}")

    def _refuse_tensor_parallel(self, size: int) -> str:
        """Why so many ranks cannot share a layer; nothing if they can."""
        if self.num_heads % size:
            return f"does not divide the {self.num_heads} heads"
        if self.num_kv_heads % size and size % self.num_kv_heads:
            return f"neither divides nor is a multiple of the {self.num_kv_heads} KV heads"
        ffn = self.moe_intermediate_size if self.num_experts else self.intermediate_size
        return f"does not divide the MLP width {ffn}" if ffn % size else ""

    def kv_heads_per_rank(self, tensor_parallel_size: int = 1) -> int:
        """KV heads a rank holds; replicated where there are more ranks than KV heads."""
        return max(1, self.num_kv_heads // tensor_parallel_size)

    def attention_params(self, tensor_parallel_size: int = 1) -> int:
        """Parameters of one layer's qkv and output projections on a rank."""
        query = self.num_heads // tensor_parallel_size * self.head_dim
        key_value = 2 * self.kv_heads_per_rank(tensor_parallel_size) * self.head_dim
        return self.hidden_size * (2 * query + key_value)

    def mlp_params(self, tensor_parallel_size: int = 1) -> int:
        """Parameters of one gate/up/down MLP on a rank; of one expert where there are experts."""
        ffn = self.moe_intermediate_size if self.num_experts else self.intermediate_size
        return 3 * self.hidden_size * (ffn // tensor_parallel_size)

    def layer_params(self, tensor_parallel_size: int = 1) -> int:
        """Parameters of one whole layer on a rank, all experts and the router included."""
        mlp = self.mlp_params(tensor_parallel_size) * max(1, self.num_experts) + self.hidden_size * self.num_experts
        return self.attention_params(tensor_parallel_size) + mlp + 2 * self.hidden_size

    def embedding_params(self, tensor_parallel_size: int = 1) -> int:
        """Parameters of the embedding, or of the LM head, on a rank."""
        return -(-self.vocab_size // tensor_parallel_size) * self.hidden_size

    def weight_bytes(
        self, tensor_parallel_size: int = 1, pipeline_parallel_size: int = 1, stage: int = 0, dtype_bytes: int = 2
    ) -> int:
        """Bytes of weights on one rank of pipeline stage `stage`: embedding on the first, LM head on the last."""
        tp, pp = tensor_parallel_size, pipeline_parallel_size
        num_embeddings = (stage == 0) + (stage == pp - 1)
        if pp == 1 and self.tied_embeddings:
            num_embeddings = 1
        params = self.num_layers // pp * self.layer_params(tp) + num_embeddings * self.embedding_params(tp)
        return params * dtype_bytes

    def kv_bytes_per_token(
        self, tensor_parallel_size: int = 1, pipeline_parallel_size: int = 1, dtype_bytes: int = 2
    ) -> int:
        """Bytes of keys and values that one token takes on one rank, over the layers of its stage."""
        layers = self.num_layers // pipeline_parallel_size
        return 2 * layers * self.kv_heads_per_rank(tensor_parallel_size) * self.head_dim * dtype_bytes


# Sizes as in each model's published config.json.
_QWEN3_8B = ModelShape("Qwen/Qwen3-8B", 36, 4096, 32, 8, 128, 12288, 151936, 40960)
_LLAMA3_8B = ModelShape("meta-llama/Meta-Llama-3-8B", 32, 4096, 32, 8, 128, 14336, 128256, 8192)
_LLAMA2_7B = ModelShape("meta-llama/Llama-2-7b-hf", 32, 4096, 32, 32, 128, 11008, 32000, 4096)
_LLAMA2_70B = ModelShape("meta-llama/Llama-2-70b-hf", 80, 8192, 64, 8, 128, 28672, 32000, 4096)
_SMOLLM2 = ModelShape("smollm2", 30, 576, 9, 3, 64, 1536, 49152, 8192, tied_embeddings=True)

MODELS: dict[str, ModelShape] = {
    model.name: model
    for model in (
        _QWEN3_8B,
        _LLAMA3_8B,
        replace(_LLAMA3_8B, name="meta-llama/Meta-Llama-3-8B-Instruct"),
        _LLAMA2_7B,
        _LLAMA2_70B,
        _SMOLLM2,
    )
}


def load_model_shape(name_or_path: str | Path) -> ModelShape:
    """A known model by name, or the one described by a config.json (its path, or the folder that holds it) or by the
    metadata of a GGUF file.

    Raises ValueError, in one line, for a name that is neither, and for a file that cannot be read as one.
    """
    if str(name_or_path) in MODELS:
        return MODELS[str(name_or_path)]
    path = Path(name_or_path)
    if path.suffix == ".gguf":
        from sarathi.model.checkpoint import open_checkpoint

        return shape_from_config(path, open_checkpoint(str(path), "auto", 0).config)
    if os.path.isdir(path):  # unlike Path.is_dir, no error for what can be no path
        path = path / "config.json"
    if not os.path.isfile(path):
        raise FieldError(
            "model",
            f"{shown(str(name_or_path))} is neither a known name ({', '.join(MODELS)}) nor a folder with a config.json",
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8-sig"))
    except RecursionError:
        raise FieldError("model", f"{path} cannot be read as JSON: it is nested too deeply") from None
    except (OSError, ValueError) as error:
        raise FieldError("model", f"{path} cannot be read as JSON: {error}") from None
    return shape_from_config(path, config)


def shape_from_config(path: str | Path, config: Any) -> ModelShape:
    """Read the field names of Hugging Face's configs of Llama, Qwen, Mistral, Mixtral and their like.

    `path`, where the config comes from, names the model: a file config.json by its folder. Raises FieldError.
    """
    if isinstance(config, dict):
        config = config.get("text_config", config)  # multimodal models nest their language model
    if not isinstance(config, dict):
        raise FieldError("model", f"{path} holds no JSON object of a model's sizes")
    if "kv_lora_rank" in config:
        raise FieldError("model", f"{path} uses multi-head latent attention (kv_lora_rank), which is not modelled")

    def integer(*keys: str, default: int | None = None) -> int:
        for key in keys:
            value = config.get(key)
            if value is not None:
                if type(value) is not int or not 0 <= value <= MAX_SIZE:
                    allowed = f"an integer from 0 to {MAX_SIZE:,}"
                    raise FieldError("model", f"{path}: {key} {shown(value)} is not allowed; {allowed}")
                return value
        if default is None:
            raise FieldError("model", f"{path} lacks {keys[0]}")
        return default

    num_heads = integer("num_attention_heads")
    hidden_size = integer("hidden_size")
    num_experts = integer("num_experts", "num_local_experts", "n_routed_experts", default=0)
    intermediate_size = integer("intermediate_size")
    return ModelShape(
        name=_name_of(Path(path)),
        num_layers=integer("num_hidden_layers"),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=integer("num_key_value_heads", default=num_heads),
        head_dim=integer("head_dim", default=hidden_size // max(1, num_heads)),
        intermediate_size=intermediate_size,
        vocab_size=integer("vocab_size"),
        max_model_len=integer("max_position_embeddings"),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        num_experts=num_experts,
        experts_per_token=integer("num_experts_per_tok", default=0),
        moe_intermediate_size=integer("moe_intermediate_size", default=intermediate_size) if num_experts else 0,
    )


def _one_of(sizes: list[int]) -> str:
    return f"one of {', '.join(map(str, sizes))}"


def _name_of(path: Path) -> str:
    path = path.resolve()
    return path.parent.name if path.name == "config.json" else path.stem if path.suffix == ".gguf" else path.name
