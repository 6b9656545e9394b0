"""The decoder: from token ids and positions of a flat batch to logits, and the filling of its weights.

A model may be one rank's share, which knows which part of the whole it is. Knows no requests and no blocks; which
tokens belong together only the attention backend knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sarathi.attention.base import AttentionBackend
from sarathi.errors import FieldError
from sarathi.model.architecture import Architecture
from sarathi.model.layers import (
    GatedLinear,
    GatedMLP,
    Linear,
    MixtureOfExperts,
    RMSNorm,
    RotaryEmbedding,
    RowParallelLinear,
    VocabularyEmbedding,
    vocabulary_rows,
)
from sarathi.model.weights import Target, columns_of, rows_of, share_of
from sarathi.worker.parallel import SINGLE, Parallel

if TYPE_CHECKING:
    from sarathi.model.checkpoint import Checkpoint

_MLP_NAMES = ("gate_proj", "up_proj", "down_proj")
_MIXTRAL_NAMES = ("w1", "w3", "w2")
_DERIVED = "rotary_emb.inv_freq"  # computed from the config; files of 2023 carry it


class Attention(nn.Module):
    """Projections, QK norm and rotary embedding around a backend's attention, of the heads of a shard."""

    def __init__(self, shard: Architecture, layer: int, dtype: torch.dtype, parallel: Parallel) -> None:
        super().__init__()
        a = self._a = shard
        self._tensor_rank = parallel.tensor_rank
        num_heads = a.num_heads + 2 * a.num_kv_heads
        self.qkv = Linear(a.hidden_size, num_heads * a.head_dim, a.qkv_bias, dtype)
        self.output = RowParallelLinear(a.num_heads * a.head_dim, a.hidden_size, a.output_bias, dtype, parallel)
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

    def targets(self, prefix: str) -> dict[str, Target]:
        a, rank = self._a, self._tensor_rank
        query = share_of(a.num_heads * a.head_dim, rank)
        key = share_of(a.num_kv_heads * a.head_dim, rank // a.kv_replicas)
        targets = rows_of(self.qkv, {f"{prefix}.q_proj": query, f"{prefix}.k_proj": key, f"{prefix}.v_proj": key})
        targets |= columns_of(self.output, f"{prefix}.o_proj", query.start)
        if self.query_norm is not None and self.key_norm is not None:
            targets[f"{prefix}.q_norm.weight"] = Target(self.query_norm.weight)
            targets[f"{prefix}.k_norm.weight"] = Target(self.key_norm.weight)
        return targets


class DecoderLayer(nn.Module):
    """Attention and MLP, each behind a norm and added to the residual stream. `layer` counts from 0 in each shard."""

    def __init__(self, shard: Architecture, layer: int, dtype: torch.dtype, parallel: Parallel) -> None:
        super().__init__()
        a = self._a = shard
        self._tensor_rank = parallel.tensor_rank
        self.attention_norm = RMSNorm(a.hidden_size, a.rms_norm_eps, dtype)
        self.attention = Attention(a, layer, dtype, parallel)
        self.mlp_norm = RMSNorm(a.hidden_size, a.rms_norm_eps, dtype)
        self.mlp: GatedMLP | MixtureOfExperts
        if a.num_experts:
            self.mlp = MixtureOfExperts(a, dtype, parallel)
        else:
            self.mlp = GatedMLP(a.hidden_size, a.intermediate_size, a.mlp_bias, dtype, parallel)

    def forward(
        self, x: Tensor, rotation: tuple[Tensor, Tensor], kv_cache: Tensor, attention: AttentionBackend
    ) -> Tensor:
        x = self.attention(self.attention_norm(x), rotation, kv_cache, attention, x)
        return self.mlp(self.mlp_norm(x), x)

    def targets(self, prefix: str) -> dict[str, Target]:
        a, rank = self._a, self._tensor_rank
        targets = {
            f"{prefix}.input_layernorm.weight": Target(self.attention_norm.weight),
            f"{prefix}.post_attention_layernorm.weight": Target(self.mlp_norm.weight),
            **self.attention.targets(f"{prefix}.self_attn"),
        }
        width = share_of(a.intermediate_size, rank)
        if isinstance(self.mlp, GatedMLP):
            return targets | _mlp_targets(self.mlp, f"{prefix}.mlp", _MLP_NAMES, width)
        home, names = ("block_sparse_moe", _MIXTRAL_NAMES) if a.family == "mixtral" else ("mlp", _MLP_NAMES)
        targets |= rows_of(self.mlp.router, {f"{prefix}.{home}.gate": range(a.num_experts)})
        for index, expert in enumerate(self.mlp.experts):
            assert isinstance(expert, GatedMLP)
            targets |= _mlp_targets(expert, f"{prefix}.{home}.experts.{index}", names, width)
        return targets


class DecoderModel(nn.Module):
    """Embedding, layers, norm and LM head, or one rank's share of them. Empty until `load_model` fills its weights.

    Layers are those of the rank's stage; the first stage has the embedding, the last one norm and LM head.
    """

    def __init__(self, architecture: Architecture, dtype: torch.dtype, parallel: Parallel = SINGLE) -> None:
        super().__init__()
        self.architecture = architecture
        self.parallel = parallel
        a = self.shard = architecture.shard(parallel)
        self.embedding: VocabularyEmbedding | None = None
        self.norm: RMSNorm | None = None
        self.head: Linear | None = None
        if parallel.is_first_stage:
            self.embedding = VocabularyEmbedding(a.vocab_size, a.hidden_size, dtype, parallel)
        self.rotary = RotaryEmbedding(a.rope, a.head_dim, dtype)
        self.layers = nn.ModuleList(DecoderLayer(a, layer, dtype, parallel) for layer in range(a.num_layers))
        if parallel.is_last_stage:
            self.norm = RMSNorm(a.hidden_size, a.rms_norm_eps, dtype)
            self.head = Linear(a.hidden_size, len(vocabulary_rows(a.vocab_size, parallel)), False, dtype)
            if a.tied_embeddings and self.embedding is not None:
                self.head.weight = self.embedding.weight

    def forward(
        self,
        given: Tensor,
        positions: Tensor,
        kv_caches: Sequence[Tensor],
        attention: AttentionBackend,
        output_rows: Tensor,
    ) -> Tensor | None:
        """Logits of the rows that give a token, or the stage's share of the way there. In torch.inference_mode.

        Args:
            given: token ids, (T,) int64, the sequences of the batch one after the other; on later stages
                (T, hidden_size), what the stage before returned.
            positions: (T,) int64.
            kv_caches: pages of each of the shard's layers, as the backend reads them.
            attention: a backend that has begun this round.
            output_rows: (R,) int64 into T.

        Returns (R, vocab_size) float32 from the last stage's tensor rank 0 and None from its other ranks;
        (T, hidden_size) from the stages before.
        """
        x = given if self.embedding is None else self.embedding(given)
        rotation = self.rotary.at(positions)
        for layer, kv_cache in zip(self.layers, kv_caches, strict=True):
            x = layer(x, rotation, kv_cache, attention)
        if self.norm is None or self.head is None:
            return x
        logits = self.parallel.gather_last_dim(self.head(self.norm(x[output_rows])))
        return None if logits is None else logits[:, : self.shard.vocab_size].float().contiguous()  # changed in place

    def targets(self) -> dict[str, Target]:
        """Where each tensor of a checkpoint goes, by its Hugging Face name: a weight, or a part of a fused one."""
        targets: dict[str, Target] = {}
        rows = vocabulary_rows(self.shard.vocab_size, self.parallel)
        rows = range(self.shard.vocab_size)[rows.start : rows.stop]
        if self.embedding is not None:
            targets["model.embed_tokens.weight"] = Target(self.embedding.weight[: len(rows)], 0, rows.start)
        if self.norm is not None and self.head is not None:
            targets["model.norm.weight"] = Target(self.norm.weight)
            assert self.head.weight is not None
            name = "model.embed_tokens.weight" if self.shard.tied_embeddings else "lm_head.weight"
            targets[name] = Target(self.head.weight[: len(rows)], 0, rows.start)
        first = self.parallel.layers(self.architecture.num_layers).start
        for index, layer in enumerate(self.layers, first):
            assert isinstance(layer, DecoderLayer)
            targets |= layer.targets(f"model.layers.{index}")
        return targets


def _mlp_targets(mlp: GatedMLP, prefix: str, names: tuple[str, str, str], width: range) -> dict[str, Target]:
    """`names` are those of gate, up and down; `width` is what the rank has of the intermediate size."""
    gate, up, down = (f"{prefix}.{name}" for name in names)
    return rows_of(mlp.gate_up, {gate: width, up: width}) | columns_of(mlp.down, down, width.start)


def tensor_shapes(architecture: Architecture) -> dict[str, torch.Size]:
    """Every tensor of a checkpoint of the whole model, by its Hugging Face name."""
    with torch.device("meta"):
        targets = DecoderModel(architecture, torch.float32).targets()
    return {name: target.weight.shape for name, target in targets.items()}


@torch.inference_mode()
def load_model(
    checkpoint: Checkpoint,
    architecture: Architecture,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    parallel: Parallel = SINGLE,
) -> DecoderModel:
    """A model, or a rank's share of it, with the checkpoint's weights in `dtype`, filled tensor by tensor and packed.

    Raises FieldError of `model` naming the tensor that is missing, surplus, of another shape or no number; of several
    ranks, each looks at what it has a part of.
    """
    with torch.device(device):
        model = DecoderModel(architecture, dtype, parallel)
    shapes, targets = tensor_shapes(architecture), model.targets()
    for name, tensor in checkpoint.tensors(skip=shapes.keys() - targets.keys()):
        target = targets.pop(name, None)
        if target is not None:
            _check(tensor, shapes[name], name, checkpoint.path)
            target.weight.copy_(tensor.narrow(target.dim, target.start, target.weight.shape[target.dim]))
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


def _check(tensor: Tensor, shape: torch.Size, name: str, path: str) -> None:
    if tensor.shape != shape:
        shapes = f"has the shape {tuple(tensor.shape)}; the config asks for {tuple(shape)}"
        raise FieldError("model", f"{path}: {name} {shapes}")
    if not tensor.is_floating_point() or tensor.itemsize < 2:
        raise FieldError("model", f"{path}: {name} is {tensor.dtype}; only float32, bfloat16 and float16 can be read")
