"""The decoder: from token ids and positions of a flat batch to logits. Attention is a backend's business.

Knows no requests and no blocks; what belongs together in a batch, only the attention backend knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from sarathi.attention.base import AttentionBackend
from sarathi.errors import FieldError
from sarathi.model.architecture import Architecture
from sarathi.model.layers import GatedMLP, Linear, MixtureOfExperts, RMSNorm, RotaryEmbedding

if TYPE_CHECKING:
    from sarathi.model.checkpoint import Checkpoint

_MLP_NAMES = ("gate_proj", "up_proj", "down_proj")
_MIXTRAL_NAMES = ("w1", "w3", "w2")
_SKIPPED = ("rotary_emb.inv_freq",)  # derived values that old checkpoints carry


class Attention(nn.Module):
    """Projections, QK norm and rotary embedding around a backend's attention. (T, hidden) to (T, hidden)."""

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
        self, x: Tensor, rotation: tuple[Tensor, Tensor], kv_cache: Tensor, attention: AttentionBackend
    ) -> Tensor:
        a = self._a
        heads = self.qkv(x).view(len(x), -1, a.head_dim)
        rotated = heads[:, : a.num_heads + a.num_kv_heads]
        if self.query_norm is not None and self.key_norm is not None:
            rotated = torch.cat(
                (self.query_norm(rotated[:, : a.num_heads]), self.key_norm(rotated[:, a.num_heads :])), 1
            )
        rotated = RotaryEmbedding.apply(rotated, *rotation)
        attended = attention.forward(
            rotated[:, : a.num_heads],
            rotated[:, a.num_heads :],
            heads[:, a.num_heads + a.num_kv_heads :],
            kv_cache,
            self._scale,
            self._window,
        )
        return self.output(attended.reshape(len(x), -1))

    def targets(self, prefix: str) -> dict[str, Tensor]:
        a = self._a
        targets: dict[str, Tensor] = {}
        for kind in ("weight", "bias"):
            if (qkv := getattr(self.qkv, kind)) is not None:
                sizes = [n * a.head_dim for n in (a.num_heads, a.num_kv_heads, a.num_kv_heads)]
                for name, part in zip(("q_proj", "k_proj", "v_proj"), qkv.split(sizes), strict=True):
                    targets[f"{prefix}.{name}.{kind}"] = part
            if (output := getattr(self.output, kind)) is not None:
                targets[f"{prefix}.o_proj.{kind}"] = output
        if self.query_norm is not None and self.key_norm is not None:
            targets[f"{prefix}.q_norm.weight"] = self.query_norm.weight
            targets[f"{prefix}.k_norm.weight"] = self.key_norm.weight
        return targets


class DecoderLayer(nn.Module):
    """Attention and MLP, each behind a norm and added to the residual stream."""

    def __init__(self, architecture: Architecture, layer: int, dtype: torch.dtype) -> None:
        super().__init__()
        a = architecture
        self.attention_norm = RMSNorm(a.hidden_size, a.rms_norm_eps, dtype)
        self.attention = Attention(a, layer, dtype)
        self.mlp_norm = RMSNorm(a.hidden_size, a.rms_norm_eps, dtype)
        self.mlp = (
            MixtureOfExperts(a, dtype)
            if a.num_experts
            else GatedMLP(a.hidden_size, a.intermediate_size, a.mlp_bias, dtype)
        )

    def forward(
        self, x: Tensor, rotation: tuple[Tensor, Tensor], kv_cache: Tensor, attention: AttentionBackend
    ) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotation, kv_cache, attention)
        return x + self.mlp(self.mlp_norm(x))

    def targets(self, prefix: str, family: str) -> dict[str, Tensor]:
        targets = {
            f"{prefix}.input_layernorm.weight": self.attention_norm.weight,
            f"{prefix}.post_attention_layernorm.weight": self.mlp_norm.weight,
            **self.attention.targets(f"{prefix}.self_attn"),
        }
        mlp = self.mlp
        if isinstance(mlp, GatedMLP):
            return targets | mlp.targets(f"{prefix}.mlp", _MLP_NAMES)
        home, names = ("block_sparse_moe", _MIXTRAL_NAMES) if family == "mixtral" else ("mlp", _MLP_NAMES)
        assert mlp.router.weight is not None
        targets[f"{prefix}.{home}.gate.weight"] = mlp.router.weight
        for index, expert in enumerate(mlp.experts):
            assert isinstance(expert, GatedMLP)
            targets |= expert.targets(f"{prefix}.{home}.experts.{index}", names)
        return targets


class DecoderModel(nn.Module):
    """Embedding, layers, norm and LM head. Weights are empty until `load_model` fills them."""

    def __init__(self, architecture: Architecture, dtype: torch.dtype) -> None:
        super().__init__()
        a = self.architecture = architecture
        self.embedding = torch.empty(a.vocab_size, a.hidden_size, dtype=dtype)
        self.rotary = RotaryEmbedding(a.rope, a.head_dim, a.max_model_len, dtype)
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
        """Logits of the rows that give a token.

        Args:
            token_ids, positions: (T,) int64, the sequences of the batch one after the other.
            kv_caches: pages of each layer.
            attention: with the round's metadata.
            output_rows: (R,) int64 into T.

        Returns (R, vocab_size) float32.
        """
        x = functional.embedding(token_ids, self.embedding)
        rotation = self.rotary.at(positions)
        for layer, kv_cache in zip(self.layers, kv_caches, strict=True):
            x = layer(x, rotation, kv_cache, attention)
        return self.head(self.norm(x[output_rows])).float()

    def targets(self) -> dict[str, Tensor]:
        """The tensor, or the part of one, that each tensor of a checkpoint fills, by its Hugging Face name."""
        targets = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.norm.weight}
        if not self.architecture.tied_embeddings:
            assert self.head.weight is not None
            targets["lm_head.weight"] = self.head.weight
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            targets |= layer.targets(f"model.layers.{index}", self.architecture.family)
        return targets


@torch.inference_mode()
def load_model(
    checkpoint: Checkpoint, architecture: Architecture, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> DecoderModel:
    """A model with the checkpoint's weights in `dtype`, filled tensor by tensor, linear layers packed.

    Raises FieldError of `model` naming the tensor that is missing, surplus or of another shape.
    """
    with torch.device(device):
        model = DecoderModel(architecture, dtype)
    targets = model.targets()
    for name, tensor in checkpoint.tensors():
        target = targets.pop(name, None)
        if target is None:
            if name.endswith(_SKIPPED) or (name == "lm_head.weight" and architecture.tied_embeddings):
                continue
            raise FieldError("model", f"{checkpoint.path}: {name} belongs to no part of a {architecture.family} model")
        if target.shape != tensor.shape:
            shapes = f"{tuple(tensor.shape)}; its config.json asks for {tuple(target.shape)}"
            raise FieldError("model", f"{checkpoint.path}: {name} has the shape {shapes}")
        target.copy_(tensor)
    if targets:
        name = next(iter(targets))
        raise FieldError("model", f"{checkpoint.path} lacks {name} and {len(targets) - 1} further tensors")
    for module in model.modules():
        if isinstance(module, Linear):
            module.pack()
    return model
