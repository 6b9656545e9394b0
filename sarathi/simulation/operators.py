"""What a simulated round is made of: its time by operator, under the names that Sarathi-Serve gives them.

It splits what the latency model says of a round, and adds nothing to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sarathi.core.plan import SchedulerOutput

if TYPE_CHECKING:
    from sarathi.simulation.latency import RoundLatency


def operator_times(latency: RoundLatency, output: SchedulerOutput) -> dict[str, float]:
    """Seconds by operator on the pipeline stage that takes longest, whose time is the round's: they sum to it.

    Always the same operators, with 0 for what a round has not. Ask when the round is submitted, as for `stage_times`.
    The soft maximum of compute and memory time is taken over all matrices of a layer at once; each gets the share
    that its own soft maximum has in their sum, which is exact without experts, where all have the same shape of curve.
    """
    times = latency.stage_times(output)
    stage = times.index(max(times))
    prefill, num_sampled = 0.0, output.num_decode_tokens
    for request, chunk in output.prefills:
        prefill += latency.prefill_attention_time(chunk, request.num_computed_tokens)
        num_sampled += not request.num_remaining_tokens
    is_first, is_last = stage == 0, stage == latency.num_stages - 1
    lm_head, sampler = latency.head_times(num_sampled) if is_last else (0.0, 0.0)
    return {
        **_layers(latency, output.num_tokens),
        "attn_prefill": prefill,
        "attn_decode": output.sum_decode_context_len * latency.time_per_context_token,
        "lm_head_linear": lm_head,
        "sampler": sampler,
        "nccl_send": 0.0 if is_last else latency.send_time(output.num_tokens),
        "cpu_overhead": latency.cpu_time(output.num_seqs) if is_first else 0.0,
    }


def _layers(latency: RoundLatency, num_tokens: int) -> dict[str, float]:
    """Seconds of a stage's layers without attention."""
    layer, num_layers = latency.layer_times(num_tokens), latency.layers_per_stage
    gemms, elements = _gemm_shares(latency, num_tokens), latency.elements()
    norms, rope, activation = (num_layers * layer.elementwise * n / sum(elements) for n in elements)
    all_reduce = num_layers * layer.all_reduce
    return {
        "input_layernorm": norms / 2,
        "attn_pre_proj": num_layers * layer.gemms * gemms["attn_pre_proj"],
        "attn_rope": rope,  # and the writing of keys and values
        "attn_post_proj": num_layers * layer.gemms * gemms["attn_post_proj"],
        "attn_post_proj_all_reduce": all_reduce,
        "post_attention_layernorm": norms / 2,
        "mlp_up_proj": num_layers * layer.gemms * gemms["mlp_up_proj"],
        "mlp_activation": activation,
        "mlp_down_proj": num_layers * layer.gemms * gemms["mlp_down_proj"],
        "mlp_down_proj_all_reduce": all_reduce,
        "launch_overhead": num_layers * layer.launch,
    }


def _gemm_shares(latency: RoundLatency, num_tokens: int) -> dict[str, float]:
    model, tp = latency.model, latency.tensor_parallel_size
    output = model.hidden_size * (model.num_heads // tp) * model.head_dim
    qkv = model.attention_params(tp) - output
    mlp = model.mlp_params(tp)  # gate, up and down are of one size
    active, touched = latency.mlps(num_tokens)
    alone = {
        "attn_pre_proj": latency.gemm_time(num_tokens, qkv, qkv),
        "attn_post_proj": latency.gemm_time(num_tokens, output, output),
        "mlp_up_proj": latency.gemm_time(num_tokens, active * mlp * 2 / 3, touched * mlp * 2 / 3),
        "mlp_down_proj": latency.gemm_time(num_tokens, active * mlp / 3, touched * mlp / 3),
    }
    total = sum(alone.values())
    return {name: seconds / total for name, seconds in alone.items()}
