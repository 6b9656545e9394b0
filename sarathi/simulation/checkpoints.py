"""Prints published and measured round times beside the latency model's, and fails if the model is too far off.

Run as `python -m sarathi.simulation.checkpoints`. Exit code 1 if a bound check point is off by `MAX_ERROR`.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from sarathi.simulation.devices import DEVICES, ENGINE_PROFILES
from sarathi.simulation.latency import RoundLatency
from sarathi.simulation.models import load_model_shape

MAX_ERROR = 0.15
DECODE_CONTEXT = 512  # tokens a decode attends to, where a check point says nothing else


class CheckPoint(NamedTuple):
    """A round and the milliseconds it is known to take on the GPU: a range, or one number twice."""

    device: str
    source: str
    num_decodes: int
    prefill: int  # tokens of one prompt, from its start; 0 for none
    low_ms: float
    high_ms: float
    model: str = "Qwen/Qwen3-8B"

    @property
    def round_name(self) -> str:
        decodes = f"{self.num_decodes} decodes at {DECODE_CONTEXT}" if self.num_decodes else ""
        prefill = f"prefill {self.prefill}" if self.prefill else ""
        return " + ".join(part for part in (prefill, decodes) if part)

    def predicted_ms(self) -> float:
        latency = RoundLatency(load_model_shape(self.model), DEVICES[self.device])
        prefills = [(self.prefill, 0)] if self.prefill else []
        return 1e3 * latency.gpu_time(self.num_decodes, self.num_decodes * DECODE_CONTEXT, prefills)

    def error(self) -> float:
        """Signed distance of the prediction to the range, relative to the bound it misses; 0 within."""
        predicted = self.predicted_ms()
        if predicted < self.low_ms:
            return predicted / self.low_ms - 1
        return max(0.0, predicted / self.high_ms - 1)


def _aiconfigurator(device: str, milliseconds: tuple[float, ...]) -> list[CheckPoint]:
    rounds = ((10, 0), (32, 0), (0, 256), (0, 512), (0, 1024))
    return [
        CheckPoint(device, "AIConfigurator", decodes, prefill, ms, ms)
        for (decodes, prefill), ms in zip(rounds, milliseconds, strict=True)
    ]


# NVIDIA AIConfigurator's measured tables for Qwen3-8B in bf16, and measured rounds of an RTX 4090.
CHECK_POINTS = [
    CheckPoint("rtx_4090", "measured", 10, 0, 18.1, 18.6),
    CheckPoint("rtx_4090", "measured", 32, 0, 21.2, 22.2),
    CheckPoint("rtx_4090", "measured", 10, 256, 35, 37),
    CheckPoint("rtx_4090", "measured", 10, 512, 58, 61),
    CheckPoint("rtx_4090", "measured", 10, 1024, 106, 110),
    *_aiconfigurator("a100_80gb", (12.6, 14.5, 23.7, 37.0, 66.2)),
    *_aiconfigurator("h100", (6.6, 8.1, 10.2, 12.9, 22.7)),
    *_aiconfigurator("rtx_pro_6000", (11.9, 13.0, 17.2, 26.8, 47.3)),
]

# Growth of an RTX 4090's dense layers when 16 tokens cross a tile's edge, measured.
STAIRCASE = ((256, 0.44), (512, 0.24), (1024, 0.14))


def llama3_a100_fit(prefill: int, num_decodes: int, decode_context: int, prefill_context: int) -> float:
    """Seconds a round of Llama-3-8B on an A100 takes by a published linear fit of measured rounds, CPU included.

    Contexts are sums of tokens. Two branches: up to 512 tokens in the round, and above.
    """
    tokens = prefill + num_decodes
    if tokens <= 512:
        time = 0.014936 + 5.88e-5 * tokens + 2.25e-5 * prefill + 3.63e-5 * num_decodes
        return time + 1.11e-7 * decode_context + 7.55e-7 * prefill_context
    time = 0.005004 + 2.72e-5 * tokens + 6.86e-5 * prefill - 4.14e-5 * num_decodes
    return time + 1.66e-7 * decode_context + 2.73e-6 * prefill_context


def decode_seconds(device: str, profile: str, num_seqs: int, first_context: int, num_tokens: int) -> float:
    """Seconds `num_seqs` Qwen3-8B requests take for `num_tokens` rounds of decode, their context growing by 1 each."""
    latency = RoundLatency(load_model_shape("Qwen/Qwen3-8B"), DEVICES[device])
    gpu = sum(latency.gpu_time(num_seqs, num_seqs * (first_context + step)) for step in range(num_tokens))
    return gpu + num_tokens * ENGINE_PROFILES[profile].overhead(num_seqs)


def _print_check_points() -> float:
    print("GPU time of a round of Qwen3-8B in bf16, ms")
    print(f"{'device':14}{'round':34}{'known':>12}{'predicted':>11}{'error':>8}  source")
    worst = 0.0
    for point in CHECK_POINTS:
        known = f"{point.low_ms:g}" + (f"-{point.high_ms:g}" if point.high_ms > point.low_ms else "")
        error = point.error()
        worst = max(worst, abs(error))
        print(
            f"{point.device:14}{point.round_name:34}{known:>12}{point.predicted_ms():11.1f}{error:8.1%}  {point.source}"
        )
    print(f"worst error {worst:.1%} (bound {MAX_ERROR:.0%})")
    return worst


def _print_staircase() -> None:
    print("\nStaircase: growth of an RTX 4090's dense layers by 16 tokens more")
    latency = RoundLatency(load_model_shape("Qwen/Qwen3-8B"), DEVICES["rtx_4090"])
    for tokens, known in STAIRCASE:
        growth = latency.layers_time(tokens + 16) / latency.layers_time(tokens) - 1
        print(f"  {tokens:4} -> {tokens + 16:4} tokens: measured +{known:.0%}, predicted +{growth:.1%}")


def _print_llama3_fit() -> None:
    print("\nLlama-3-8B on A100, ms, lean profile's CPU included: published linear fit beside ours (not bound)")
    latency = RoundLatency(load_model_shape("meta-llama/Meta-Llama-3-8B"), DEVICES["a100_80gb"])
    for prefill, decodes in ((0, 10), (0, 32), (0, 128), (256, 0), (502, 10), (448, 64), (1024, 0), (2048, 0)):
        context = decodes * DECODE_CONTEXT
        fit = 1e3 * llama3_a100_fit(prefill, decodes, context, 0)
        gpu = latency.gpu_time(decodes, context, [(prefill, 0)] if prefill else [])
        ours = 1e3 * (gpu + ENGINE_PROFILES["lean"].overhead(decodes + bool(prefill)))
        print(f"  prefill {prefill:5}, decodes {decodes:4}: fit {fit:6.1f}, ours {ours:6.1f}, {ours / fit - 1:+.0%}")


def _print_engine_rounds() -> None:
    total = decode_seconds("rtx_4090", "lean", 10, 40, 512)
    print(
        f"\nlean, RTX 4090, 10 requests of 512 tokens from context 40: {total:.2f} s, "
        f"{1e3 * total / 512:.1f} ms a round (published 10.85 s, 21.2 ms)"
    )
    print("sarathi_2024: a decode round in ms beside 13.6 + 0.5 n, context 150")
    for device in ("rtx_pro_5000_72gb", "rtx_5090"):
        for num_seqs in (10, 32):
            ours = 1e3 * decode_seconds(device, "sarathi_2024", num_seqs, 150, 1)
            known = 13.6 + 0.5 * num_seqs
            print(f"  {device:18} {num_seqs:3} seqs: known {known:5.1f}, ours {ours:5.1f}, {ours / known - 1:+.0%}")
    latency = RoundLatency(load_model_shape("Qwen/Qwen3-8B"), DEVICES["rtx_pro_5000_72gb"])
    prefill_ms = 1e3 * latency.gpu_time(0, 0, [(1024, 0)])
    print(f"RTX PRO 5000, prefill of 1024 tokens: {prefill_ms:.1f} ms (published: about 105)")


def main() -> int:
    worst = _print_check_points()
    _print_staircase()
    _print_llama3_fit()
    _print_engine_rounds()
    return int(worst >= MAX_ERROR)


if __name__ == "__main__":
    sys.exit(main())
