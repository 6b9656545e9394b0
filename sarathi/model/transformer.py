"""The decoder: from token ids and positions of a flat batch to logits, and the filling of its weights.

Knows no requests and no blocks; which tokens belong together only the attention backend knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from sarathi.attention.base import AttentionBackend
from sarathi.errors import FieldError
from sarathi.model.architecture import Architecture
from sarathi.model.layers import GatedLinear, GatedMLP, Linear, MixtureOfExperts, RMSNorm, RotaryEmbedding

if TYPE_CHECKING:
    from sarathi.model.checkpoint import Checkpoint

_MLP_NAMES = ("gate_proj", "up_proj", "down_proj")
_MIXTRAL_NAMES = ("w1", "w3", "w2")
_DERIVED = "rotary_emb.inv_freq"  # computed from the config; files of 2023 carry it


class Attention(nn.Module):
    """Projections, QK norm and rotary embedding around a backend's attention."""

    def __init__(self, architecture: Architecture, layer: int, dtype: torch.dtype) -> None:
        super().__init__()
        a = self._a = architecture
        num_heads = a.num_heads + 2 * a.num_kv_heads
        self.qkv = Linear(a.hidden_size, num_heads * a.head_dim, a.qkv_bias, dtype)
        self.output = Linear(a.num_heads * a.head_dim, a.hidden_size, a.output_bias, dtype)
        self.query_norm = RMSNorm(a.head_dim, a.rms_norm_eps, dtype) if a.qk_norm else None
        self.key_norm = RMSNorm(a.head_dim, a.rms_norm_eps, dtype) if a.qk_norm else None
        self._scale = a.head_dim**-0.5
        self._window = a.windows[layer]

    def forward(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        kv_cache: Tensor,
        attention: AttentionBackend,
        residual: Tensor,
    ) -> Tensor:
        """(T, hidden_size) to the same, added to `residual`."""
        a = self._a
        num_rotated = a.num_heads + a.num_kv_heads
        heads = self.qkv(x).view(len(x), -1, a.head_dim)
        rotated = heads[:, :num_rotated]
        if self.query_norm is not None and self.key_norm is not None:
            query, key = rotated.split((a.num_heads, a.num_kv_heads), 1)
            rotated = torch.cat((self.query_norm(query), self.key_norm(key)), 1)
        query, key = RotaryEmbedding.rotate(rotated, *rotation).split((a.num_heads, a.num_kv_heads), 1)
        attended = attention.forward(query, key, heads[:, num_rotated:], kv_cache, self._scale, self._window)
        return self.output(attended.reshape(len(x), -1), residual)

    def targets(self, prefix: str) -> dict[str, Tensor]:
        a = self._a
        query_size, key_size = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
        parts = {f"{prefix}.q_proj": query_size, f"{prefix}.k_proj": key_size, f"{prefix}.v_proj": key_size}
        targets = _targets(self.qkv, parts) | _targets(self.output, {f"{prefix}.o_proj": a.hidden_size})
        if self.query_norm is not None and self.key_norm is not None:
            targets[f"{prefix}.q_norm.weight"] = self.query_norm.weight
            targets[f"{prefix}.k_norm.weight"] = self.key_norm.weight
        return targets


class DecoderLayer(nn.Module):
    """Attention and MLP, each behind a norm and added to the residual stream."""

    def __init__(self, architecture: Architecture, layer: int, dtype: torch.dtype) -> None:
        super().__init__()
        a = self._a = architecture
        self.attention_norm = RMSNorm(a.hidden_size, a.rms_norm_eps, dtype)
        self.attention = Attention(a, layer, dtype)
        self.mlp_norm = RMSNorm(a.hidden_size, a.rms_norm_eps, dtype)
        self.mlp: GatedMLP | MixtureOfExperts
        if a.num_experts:
            self.mlp = MixtureOfExperts(a, dtype)
        else:
            self.mlp = GatedMLP(a.hidden_size, a.intermediate_size, a.mlp_bias, dtype)

    def forward(
        self, x: Tensor, rotation: tuple[Tensor, Tensor], kv_cache: Tensor, attention: AttentionBackend
    ) -> Tensor:
        x = self.attention(self.attention_norm(x), rotation, kv_cache, attention, x)
        return self.mlp(self.mlp_norm(x), x)

    def targets(self, prefix: str) -> dict[str, Tensor]:
        a = self._a
        targets = {
            f"{prefix}.input_layernorm.weight": self.attention_norm.weight,
            f"{prefix}.post_attention_layernorm.weight": self.mlp_norm.weight,
            **self.attention.targets(f"{prefix}.self_attn"),
        }
        if isinstance(self.mlp, GatedMLP):
            return targets | _mlp_targets(self.mlp, f"{prefix}.mlp", _MLP_NAMES, a)
        home, names = ("block_sparse_moe", _MIXTRAL_NAMES) if a.family == "mixtral" else ("mlp", _MLP_NAMES)
        targets |= _targets(self.mlp.router, {f"{prefix}.{home}.gate": a.num_experts})
        for index, expert in enumerate(self.mlp.experts):
            assert isinstance(expert, GatedMLP)
            targets |= _mlp_targets(expert, f"{prefix}.{home}.experts.{index}", names, a)
        return targets


class DecoderModel(nn.Module):
    """Embedding, layers, norm and LM head. Weights are empty until `load_model` fills them."""

    def __init__(self, architecture: Architecture, dtype: torch.dtype) -> None:
        super().__init__()
        a = self.architecture = architecture
        self.embedding = torch.empty(a.vocab_size, a.hidden_size, dtype=dtype)
        self.rotary = RotaryEmbedding(a.rope, a.head_dim, dtype)
        self.layers = nn.ModuleList(DecoderLayer(a, layer, dtype) for layer in range(a.num_layers))
        self.norm = RMSNorm(a.hidden_size, a.rms_norm_eps, dtype)
        self.head = Linear(a.hidden_size, a.vocab_size, False, dtype)
        if a.tied_embeddings:
            self.head.weight = self.embedding

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        kv_caches: Sequence[Tensor],
        attention: AttentionBackend,
        output_rows: Tensor,
    ) -> Tensor:
        """Logits of the rows that give a token. To be called in torch.inference_mode.

        Args:
            token_ids, positions: (T,) int64, the sequences of the batch one after the other.
            kv_caches: pages of each layer, as the backend reads them.
            attention: a backend that has begun this round.
            output_rows: (R,) int64 into T.

        Returns (R, vocab_size) float32.
        """
        x = functional.embedding(token_ids, self.embedding)
        rotation = self.rotary.at(positions)
        for layer, kv_cache in zip(self.layers, kv_caches, strict=True):
            x = layer(x, rotation, kv_cache, attention)
        return self.head(self.norm(x[output_rows])).float()

    def targets(self) -> dict[str, Tensor]:
        """Where each tensor of a checkpoint goes, by its Hugging Face name: a weight, or a part of a fused one."""
        targets = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.norm.weight}
        if not self.architecture.tied_embeddings:
            targets |= _targets(self.head, {"lm_head": self.architecture.vocab_size})
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            targets |= layer.targets(f"model.layers.{index}")
        return targets


def _targets(linear: Linear | GatedLinear, num_rows: Mapping[str, int]) -> dict[str, Tensor]:
    """A linear layer's weight and bias, cut into the named parts of so many rows each."""
    targets: dict[str, Tensor] = {}
    for kind in ("weight", "bias"):
        whole: Tensor | None = getattr(linear, kind)
        if whole is not None:
            parts = whole.split(list(num_rows.values()))
            targets |= {f"{name}.{kind}": part for name, part in zip(num_rows, parts, strict=True)}
    return targets


def _mlp_targets(
    mlp: GatedMLP, prefix: str, names: tuple[str, str, str], architecture: Architecture
) -> dict[str, Tensor]:
    """`names` are those of gate, up and down."""
    gate, up, down = (f"{prefix}.{name}" for name in names)
    width = architecture.intermediate_size
    return _targets(mlp.gate_up, {gate: width, up: width}) | _targets(mlp.down, {down: architecture.hidden_size})


@torch.inference_mode()
def load_model(
    checkpoint: Checkpoint, architecture: Architecture, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> DecoderModel:
    """A model with the checkpoint's weights in `dtype`, filled tensor by tensor, linear layers packed.

    Raises FieldError of `model` naming the tensor that is missing, surplus, of another shape or no number.
    """
    with torch.device(device):
        model = DecoderModel(architecture, dtype)
    targets = model.targets()
    for name, tensor in checkpoint.tensors():
        target = targets.pop(name, None)
        if target is not None:
            _fill(target, name, tensor, checkpoint.path)
        elif not (name.endswith(_DERIVED) or (name == "lm_head.weight" and architecture.tied_embeddings)):
            raise FieldError("model", f"{checkpoint.path}: {name} has no place in the model that its config describes")
    if targets:
        missing = next(iter(targets))
        others = f" and {len(targets) - 1} more tensors" if len(targets) > 1 else ""
        raise FieldError("model", f"{checkpoint.path} lacks {missing}{others}")
    for module in model.modules():
        if isinstance(module, (Linear, GatedLinear)):
            module.pack()
    return model


def _fill(target: Tensor, name: str, tensor: Tensor, path: str) -> None:
    if target.shape != tensor.shape:
        shapes = f"has the shape {tuple(tensor.shape)}; the config asks for {tuple(target.shape)}"
        raise FieldError("model", f"{path}: {name} {shapes}")
    if not tensor.is_floating_point() or tensor.itemsize < 2:
        raise FieldError("model", f"{path}: {name} is {tensor.dtype}; only float32, bfloat16 and float16 can be read")
    target.copy_(tensor)
