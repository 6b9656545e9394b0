"""The simulated device: check points, staircase, parallelism, memory and jitter."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sarathi.core.plan import SchedulerOutput
from sarathi.request import Request, SamplingParams
from sarathi.simulation import checkpoints
from sarathi.simulation.devices import DEVICES, ENGINE_PROFILES
from sarathi.simulation.latency import Jitter, RoundLatency, round_to_tile
from sarathi.simulation.memory import MemoryModel, num_kv_blocks
from sarathi.simulation.models import load_model_shape
from tests.simulate import make_output

QWEN = load_model_shape("Qwen/Qwen3-8B")
LLAMA = load_model_shape("meta-llama/Meta-Llama-3-8B")
RTX_4090 = DEVICES["rtx_4090"]


def kv_blocks(device, model, tp=1, pp=1, *, gpu_memory_utilization=0.9, block_size=16) -> int:
    return num_kv_blocks(device, model, tp, pp, gpu_memory_utilization=gpu_memory_utilization, block_size=block_size)


def make_request(num_prompt_tokens: int, num_computed_tokens: int) -> Request:
    request = Request("r", range(num_prompt_tokens), SamplingParams(), 0.0)
    request.num_computed_tokens = num_computed_tokens
    return request


def round_of(
    num_decodes: int, sum_decode_context_len: int, prefills: Sequence[tuple[Request, int]] = ()
) -> SchedulerOutput:
    decodes = [make_request(1, 1)] * num_decodes
    return make_output(decodes, prefills, sum_decode_context_len=sum_decode_context_len)


@pytest.mark.parametrize("point", checkpoints.CHECK_POINTS, ids=lambda point: f"{point.device}: {point.round_name}")
def test_check_point_within_eight_percent(point):
    assert abs(point.error()) < 0.08


def test_check_points_command_fails_beyond_its_bound(monkeypatch, capsys):
    assert checkpoints.main() == 0
    assert "worst error" in capsys.readouterr().out
    monkeypatch.setattr(checkpoints, "MAX_ERROR", 0.01)
    assert checkpoints.main() == 1


def test_check_point_error_is_the_distance_to_its_range():
    point = checkpoints.CHECK_POINTS[0]
    predicted = point.predicted_ms()
    assert point._replace(low_ms=predicted - 1, high_ms=predicted + 1).error() == 0
    assert point._replace(low_ms=2 * predicted, high_ms=3 * predicted).error() == pytest.approx(-0.5)
    assert point._replace(low_ms=0, high_ms=predicted / 2).error() == pytest.approx(1.0)


@pytest.mark.parametrize(("tokens", "growth"), checkpoints.STAIRCASE)
def test_staircase_of_the_4090(tokens, growth):
    latency = RoundLatency(QWEN, RTX_4090)
    assert latency.layers_time(tokens + 16) / latency.layers_time(tokens) - 1 == pytest.approx(growth, abs=0.025)


def test_tiles():
    assert [round_to_tile(n) for n in (0, 1, 16, 17, 33, 64, 65, 128, 129, 256)] == [
        0, 16, 16, 32, 64, 64, 128, 128, 256, 256,
    ]  # fmt: skip


def test_published_execution_time_of_512_tokens():
    assert checkpoints.decode_seconds("rtx_4090", "lean", 10, 40, 512) == pytest.approx(10.85, rel=0.015)


def test_lean_costs_two_to_three_milliseconds_at_ten_sequences():
    assert 2e-3 <= ENGINE_PROFILES["lean"].overhead(10) <= 3e-3


@pytest.mark.parametrize("device", ["rtx_pro_5000_72gb", "rtx_5090"])
@pytest.mark.parametrize("num_seqs", [10, 32])
def test_sarathi_2024_decode_rounds(device, num_seqs):
    seconds = checkpoints.decode_seconds(device, "sarathi_2024", num_seqs, 150, 1)
    assert seconds == pytest.approx((13.6 + 0.5 * num_seqs) * 1e-3, rel=0.1)


def test_pro_5000_round_of_1024_tokens():
    latency = RoundLatency(QWEN, DEVICES["rtx_pro_5000_72gb"])
    assert latency.gpu_time(0, 0, [(1024, 0)]) == pytest.approx(0.105, rel=0.03)


@settings(max_examples=60, deadline=None)
@given(
    device=st.sampled_from(sorted(DEVICES)),
    num_tokens=st.integers(1, 4096),
    more=st.integers(1, 300),
    tensor_parallel_size=st.sampled_from([1, 2, 4]),
)
def test_time_grows_with_tokens(device, num_tokens, more, tensor_parallel_size):
    latency = RoundLatency(QWEN, DEVICES[device], tensor_parallel_size)
    assert latency.layers_time(num_tokens) < latency.layers_time(num_tokens + more)


def test_stage_times_agree_with_gpu_time_plus_cpu():
    profile = ENGINE_PROFILES["lean"]
    latency = RoundLatency(QWEN, RTX_4090, profile=profile)
    prefills = [(make_request(600, 300), 200), (make_request(62, 62), 62)]
    (seconds,) = latency.stage_times(round_of(50, 25_000, prefills))
    # Only the second chunk completes its prompt: 51 tokens are sampled.
    gpu = latency.gpu_time(50, 25_000, [(200, 100), (62, 0)], num_sampled=51)
    assert seconds == pytest.approx(gpu + profile.overhead(52), rel=1e-12)


def test_only_completed_prompts_pay_for_the_lm_head():
    latency = RoundLatency(QWEN, RTX_4090)
    (partial,) = latency.stage_times(round_of(0, 0, [(make_request(200, 64), 64)]))
    (complete,) = latency.stage_times(round_of(0, 0, [(make_request(64, 64), 64)]))
    head_bytes = 2 * QWEN.vocab_size * QWEN.hidden_size
    assert complete - partial > head_bytes / (RTX_4090.memory_gb_per_s * 1e9)


def test_attention_costs():
    latency = RoundLatency(QWEN, RTX_4090)
    kv_bytes = QWEN.kv_bytes_per_token()
    more_context = latency.gpu_time(10, 20_000) - latency.gpu_time(10, 10_000)
    bandwidth = RTX_4090.memory_gb_per_s * 1e9 * RTX_4090.attention_memory_efficiency
    assert more_context == pytest.approx(10_000 * kv_bytes / bandwidth)
    # A prompt's attention is the same FLOPs in one chunk or in two; only what depends on the chunk count differs.
    one = latency.prefill_attention_time(1024, 1024)
    two = latency.prefill_attention_time(512, 512) + latency.prefill_attention_time(512, 1024)
    assert one == pytest.approx(two)
    flops = 4 * QWEN.num_layers * QWEN.num_heads * QWEN.head_dim * 1024 * 1025 / 2
    assert one == pytest.approx(flops / (RTX_4090.bf16_tflops * 1e12 * RTX_4090.attention_compute_efficiency))
    # One token of prefill over a long context is a decode: it reads the cache.
    assert latency.prefill_attention_time(1, 8192) == pytest.approx(8192 * kv_bytes / bandwidth)


def test_tensor_parallel_halves_weights_and_pays_for_all_reduce():
    single = RoundLatency(LLAMA, DEVICES["a100_80gb"]).gpu_time(0, 0, [(2048, 0)])
    double = RoundLatency(LLAMA, DEVICES["a100_80gb"], 2).gpu_time(0, 0, [(2048, 0)])
    assert single / 2 < double < single
    # Over PCIe the same split gains less.
    ratio = RoundLatency(LLAMA, RTX_4090, 2).gpu_time(0, 0, [(2048, 0)]) / RoundLatency(LLAMA, RTX_4090).gpu_time(
        0, 0, [(2048, 0)]
    )
    assert double / single < ratio


def test_pipeline_stages():
    profile = ENGINE_PROFILES["sarathi_2024"]
    whole = RoundLatency(QWEN, DEVICES["h100"])
    staged = RoundLatency(QWEN, DEVICES["h100"], pipeline_parallel_size=4, profile=profile)
    output = round_of(32, 32 * 512)
    times = staged.stage_times(output)
    assert len(times) == 4
    assert times[1] == times[2]
    assert times[0] - times[1] == pytest.approx(profile.overhead(32))  # the CPU's part, once a round
    assert times[3] > times[2]  # LM head and sampler
    transfers = sum(times) - profile.overhead(32) - whole.stage_times(output)[0]
    assert 3 * DEVICES["h100"].interconnect_latency < transfers < 1e-4


@pytest.mark.parametrize(
    ("tensor_parallel_size", "pipeline_parallel_size", "message"),
    [(3, 1, "32 heads"), (1, 5, "36 layers"), (0, 1, "at least 1"), (1, -1, "at least 1")],
)
def test_parallel_sizes_that_do_not_divide(tensor_parallel_size, pipeline_parallel_size, message):
    with pytest.raises(ValueError, match=message):
        RoundLatency(QWEN, RTX_4090, tensor_parallel_size, pipeline_parallel_size)


def test_smollm2_splits_over_three():
    smollm2 = load_model_shape("smollm2")
    RoundLatency(smollm2, RTX_4090, 3)
    with pytest.raises(ValueError, match="tensor_parallel_size: 2 does not divide the 9 heads"):
        RoundLatency(smollm2, RTX_4090, 2)


def test_kv_blocks_of_the_4090():
    # 24 GiB * 0.9 - 15.25 GiB of weights - 2 GiB = 4.3 GiB of 144 KiB a token.
    assert kv_blocks(RTX_4090, QWEN) * 16 == pytest.approx(31_600, abs=200)
    assert kv_blocks(RTX_4090, QWEN, block_size=32) == kv_blocks(RTX_4090, QWEN) // 2
    # The published high-load run at fraction 0.6 of 72 GiB had about 180,000 tokens of KV cache.
    tokens = 16 * kv_blocks(DEVICES["rtx_pro_5000_72gb"], QWEN, gpu_memory_utilization=0.6)
    assert tokens == pytest.approx(180_000, rel=0.06)


def test_kv_blocks_grow_with_ranks():
    one = kv_blocks(DEVICES["a100_80gb"], QWEN)
    assert kv_blocks(DEVICES["a100_80gb"], QWEN, 2) > 2 * one
    assert kv_blocks(DEVICES["a100_80gb"], QWEN, 1, 2) > 2 * one


def test_model_that_does_not_fit_names_model_device_and_sizes():
    with pytest.raises(ValueError, match=r"Llama-2-70b-hf does not fit on rtx_4090.*128\.\d GiB.*has 21\.6 GiB"):
        kv_blocks(RTX_4090, load_model_shape("meta-llama/Llama-2-70b-hf"))


def test_memory_stats_follow_the_blocks_in_use():
    memory = MemoryModel(RTX_4090, QWEN)
    empty, full = memory.stats(0), memory.stats(kv_blocks(RTX_4090, QWEN))
    assert empty.cuda_allocated_mb == pytest.approx(QWEN.weight_bytes() / 1e6)
    assert full.cuda_allocated_mb - empty.cuda_allocated_mb == pytest.approx(31_616 * 147_456 / 1e6, rel=0.01)
    total = 24 * 2**30 / 1e6
    for stats in (empty, full):
        assert stats.gpu_mem_used_mb + stats.gpu_mem_free_mb == pytest.approx(total)
    assert full.gpu_mem_used_mb == pytest.approx(0.9 * total, rel=0.001)


def test_jitter_is_seeded_has_mean_one_and_is_off_by_default():
    assert [Jitter().factor() for _ in range(3)] == [1.0] * 3
    jitter = Jitter(0.1, seed=7)
    factors = [jitter.factor() for _ in range(20_000)]
    assert statistics.fmean(factors) == pytest.approx(1.0, abs=0.003)
    assert statistics.stdev(factors) == pytest.approx(0.1, rel=0.03)
    again = Jitter(0.1, seed=7)
    assert [again.factor() for _ in range(100)] == factors[:100]
    assert Jitter(0.1, seed=8).factor() != factors[0]


@pytest.mark.parametrize("sigma", [-0.1, 1.5, math.nan])
def test_jitter_out_of_range(sigma):
    with pytest.raises(ValueError, match="jitter"):
        Jitter(sigma)


def test_every_device_says_where_its_constants_come_from():
    for name, device in DEVICES.items():
        assert device.name == name
        assert device.source and ("alibrated" in device.calibration or "ssumed" in device.calibration)
        for efficiency in (
            device.compute_efficiency, device.memory_efficiency,
            device.attention_compute_efficiency, device.attention_memory_efficiency,
        ):  # fmt: skip
            assert 0 < efficiency <= 1
        assert device.overlap_exponent >= 1
