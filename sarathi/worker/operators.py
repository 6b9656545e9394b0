"""Which parts of a model are operators, and what they are called: Sarathi-Serve's names."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from sarathi.attention.base import AttentionBackend
from sarathi.call_timer import CallTimer
from sarathi.model.layers import GatedMLP, MixtureOfExperts
from sarathi.model.transformer import DecoderLayer, DecoderModel
from sarathi.worker.sampler import Sampler


def operator_timer(
    model: DecoderModel, attention: AttentionBackend, sampler: Sampler, now: Callable[[], float]
) -> CallTimer:
    """A timer of every operator of a round. What runs between them is theirs that call them:

    `attn_rope` is QK norms' and rotary embedding's and the cutting of heads, `moe_linear` the gathering of an expert's
    tokens too, `attn` the writing of keys and values too; `mlp_up_proj` computes the activation with it.
    """
    timer = CallTimer(now)
    for layer in model.layers:
        assert isinstance(layer, DecoderLayer)
        _time_forward(timer, layer.attention_norm, "input_layernorm")
        _time_forward(timer, layer.attention.qkv, "attn_pre_proj")
        _time_forward(timer, layer.attention, "attn_rope")
        _time_forward(timer, layer.attention.output, "attn_post_proj")
        _time_forward(timer, layer.mlp_norm, "post_attention_layernorm")
        if isinstance(layer.mlp, MixtureOfExperts):
            _time_forward(timer, layer.mlp.router, "moe_gating")
            _time_forward(timer, layer.mlp, "moe_linear")
        for mlp in layer.mlp.modules():
            if isinstance(mlp, GatedMLP):
                _time_forward(timer, mlp.gate_up, "mlp_up_proj")
                _time_forward(timer, mlp.down, "mlp_down_proj")
        if model.parallel.tensor_size > 1:
            summed = layer.mlp.down if isinstance(layer.mlp, GatedMLP) else layer.mlp
            timer.time(layer.attention.output, "reduce", "attn_post_proj_all_reduce")
            timer.time(summed, "reduce", "mlp_down_proj_all_reduce")
    timer.time(attention, "forward", "attn")
    if model.norm is not None and model.head is not None:
        _time_forward(timer, model.norm, "norm")
        _time_forward(timer, model.head, "lm_head_linear")
    timer.time(sampler, "sample", "sampler")
    return timer


def _time_forward(timer: CallTimer, module: nn.Module, name: str) -> None:
    timer.time(module, "forward", name)
