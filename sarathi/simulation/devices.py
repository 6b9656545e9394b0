"""What a simulated accelerator is: published constants with their source, and fitted efficiencies labelled so.

Knows nothing about models or rounds. Every device's `source` says where its peak figures come from and its
`calibration` what its efficiencies were fitted to; "assumed" means that no measurement stands behind them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator. Efficiencies are achieved / peak, in (0, 1]; bandwidths in GB/s (10^9 bytes).

    `overlap_exponent` is the p of the soft maximum (c^p + m^p)^(1/p) of compute time c and memory time m of the
    dense layers: 1 adds them (no overlap), large p approaches max(c, m). `interconnect_gb_per_s` is one direction.
    """

    name: str
    bf16_tflops: float  # dense, with fp32 accumulation
    memory_gb_per_s: float
    memory_gib: float
    compute_efficiency: float
    memory_efficiency: float
    overlap_exponent: float
    attention_compute_efficiency: float
    attention_memory_efficiency: float
    interconnect_gb_per_s: float
    source: str
    calibration: str
    interconnect_latency: float = 10e-6  # seconds a transfer; AIConfigurator's p2p_latency (an estimate there too)
    launch_overhead: float = 12e-6  # seconds a layer; calibrated: measured layers show about 10 us


# Interconnects, one direction: PCIe Gen4 x16 32 GB/s, Gen5 x16 64 GB/s (PCI-SIG); NVLink 300 GB/s on A100 and 450 GB/s
# on H100/H200 (NVIDIA data sheets give the sum of both directions: 600 and 900).
_DEVICES = (
    Device(
        name="rtx_4090",
        bf16_tflops=165.2,
        memory_gb_per_s=1008,
        memory_gib=24,
        compute_efficiency=0.99,
        memory_efficiency=0.91,
        overlap_exponent=5.0,
        attention_compute_efficiency=0.45,
        attention_memory_efficiency=0.55,
        interconnect_gb_per_s=32,
        source="NVIDIA Ada architecture whitepaper; 163-166 TFLOP/s measured in LLMServingSim's layer profiles",
        calibration="Calibrated to measured layers (staircase) and to Qwen3-8B rounds of 10 and 32 decodes and of "
        "256, 512 and 1024 prefill tokens",
    ),
    Device(
        name="rtx_5090",
        bf16_tflops=209.5,
        memory_gb_per_s=1792,
        memory_gib=32,
        compute_efficiency=0.95,
        memory_efficiency=0.80,
        overlap_exponent=3.0,
        attention_compute_efficiency=0.45,
        attention_memory_efficiency=0.55,
        interconnect_gb_per_s=64,
        source="NVIDIA product page: sparse FP16 838 TFLOP/s / 4 (dense, fp32 accumulation at half rate)",
        calibration="Assumed: memory as on the RTX PRO 6000 (same chip), compute and overlap close to the RTX 4090's",
    ),
    Device(
        name="rtx_pro_5000_72gb",
        bf16_tflops=258,
        memory_gb_per_s=1344,
        memory_gib=72,
        compute_efficiency=0.58,
        memory_efficiency=0.86,
        overlap_exponent=1.5,
        attention_compute_efficiency=0.45,
        attention_memory_efficiency=0.58,
        interconnect_gb_per_s=64,
        source="NVIDIA product page: 2064 AI TOPS / 8; sources conflict on the dense bf16 rate",
        calibration="Calibrated to published rounds of Qwen3-8B: compute to 1,024 tokens in about 105 ms, memory to "
        "decode rounds of 13.6 + 0.5 n ms in all; the rest assumed as on the RTX PRO 6000",
    ),
    Device(
        name="rtx_pro_6000",
        bf16_tflops=467.8,
        memory_gb_per_s=1792,
        memory_gib=96,
        compute_efficiency=0.78,
        memory_efficiency=0.82,
        overlap_exponent=1.5,
        attention_compute_efficiency=0.45,
        attention_memory_efficiency=0.58,
        interconnect_gb_per_s=64,
        source="NVIDIA AIConfigurator, systems/rtx_pro_6000_server.yaml",
        calibration="Calibrated to AIConfigurator's measured tables for Qwen3-8B",
    ),
    Device(
        name="a100_80gb",
        bf16_tflops=312,
        memory_gb_per_s=2039,
        memory_gib=80,
        compute_efficiency=0.83,
        memory_efficiency=0.71,
        overlap_exponent=1.15,
        attention_compute_efficiency=0.45,
        attention_memory_efficiency=0.56,
        interconnect_gb_per_s=300,
        source="NVIDIA AIConfigurator, system a100_sxm",
        calibration="Calibrated to AIConfigurator's measured tables for Qwen3-8B",
    ),
    Device(
        name="h100",
        bf16_tflops=989,
        memory_gb_per_s=3350,
        memory_gib=80,
        compute_efficiency=0.85,
        memory_efficiency=0.79,
        overlap_exponent=1.25,
        attention_compute_efficiency=0.45,
        attention_memory_efficiency=0.52,
        interconnect_gb_per_s=450,
        source="NVIDIA AIConfigurator, system h100_sxm",
        calibration="Calibrated to AIConfigurator's measured tables for Qwen3-8B",
    ),
    Device(
        name="h200",
        bf16_tflops=989,
        memory_gb_per_s=4800,
        memory_gib=141,
        compute_efficiency=0.85,
        memory_efficiency=0.79,
        overlap_exponent=1.25,
        attention_compute_efficiency=0.45,
        attention_memory_efficiency=0.52,
        interconnect_gb_per_s=450,
        source="NVIDIA AIConfigurator, system h200_sxm",
        calibration="Assumed as on the H100 (same chip)",
    ),
    # msmodeling gives 5 us a matrix operation and 2 us a vector operation as static cost (marked there as to be
    # confirmed): 4 and 7 of them a layer make 34 us. Its HCCS links: 196 GB/s and 0.5 us, plus 10 us an operation.
    Device(
        name="ascend_910b3",
        bf16_tflops=294.9,
        memory_gb_per_s=1759,
        memory_gib=64,
        compute_efficiency=0.7,
        memory_efficiency=0.6,
        overlap_exponent=1.25,
        attention_compute_efficiency=0.45,
        attention_memory_efficiency=0.5,
        interconnect_gb_per_s=196,
        interconnect_latency=10.5e-6,
        launch_overhead=34e-6,
        source="Ascend msmodeling, tensor_cast/device.py, ATLAS_800_A2_313T_64G (1.6 TiB/s)",
        calibration="msmodeling's default efficiencies (compute 0.7, memory 0.6); attention and overlap assumed",
    ),
    Device(
        name="ascend_910b4",
        bf16_tflops=245.8,
        memory_gb_per_s=1759,
        memory_gib=64,
        compute_efficiency=0.7,
        memory_efficiency=0.6,
        overlap_exponent=1.25,
        attention_compute_efficiency=0.45,
        attention_memory_efficiency=0.5,
        interconnect_gb_per_s=196,
        interconnect_latency=10.5e-6,
        launch_overhead=34e-6,
        source="Ascend msmodeling, tensor_cast/device.py, ATLAS_800_A2_280T_64G (1.6 TiB/s); a 32 GiB card exists too",
        calibration="msmodeling's default efficiencies (compute 0.7, memory 0.6); attention and overlap assumed",
    ),
)

DEVICES: dict[str, Device] = {device.name: device for device in _DEVICES}


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """What a round costs on the CPU, not overlapped with the GPU: `base + per_seq * num_seqs` seconds."""

    name: str
    base: float  # seconds
    per_seq: float  # seconds a sequence
    source: str

    def overhead(self, num_seqs: int) -> float:
        """Seconds for a round of `num_seqs` sequences."""
        return self.base + self.per_seq * num_seqs


_ENGINE_PROFILES = (
    # 512 tokens in 10.85 s at 10 sequences are 21.2 ms a round on an RTX 4090, whose GPU part at the mean context of
    # about 300 tokens is 18.0 ms; the share of `per_seq` is assumed (vLLM's scheduler alone takes 18 us a sequence).
    EngineProfile("lean", 2.5e-3, 0.05e-3, "Calibrated to 10.85 s for 512 tokens at 10 sequences on an RTX 4090"),
    # The published two-GPU RTX 5090 runs (10 and 32 sequences) decode at 18.7 and 29.8 ms a token, and those on the
    # RTX PRO 5000 lie near: 13.6 + 0.5 n ms a *whole* round. Qwen3-8B's weights alone take 10.6 ms (5090) to 13.1 ms
    # (PRO 5000) of it, which leaves little constant for the CPU and nearly all of the 0.5 ms a sequence: the GPU needs
    # about 0.06 ms a sequence more. One pair for both cards: the PRO 5000 comes out above the line, the 5090 below.
    EngineProfile(
        "sarathi_2024",
        1.2e-3,
        0.44e-3,
        "Calibrated: with the GPU time of Qwen3-8B on RTX 5090 and RTX PRO 5000 near 13.6 + 0.5 n ms a decode round",
    ),
)

ENGINE_PROFILES: dict[str, EngineProfile] = {profile.name: profile for profile in _ENGINE_PROFILES}
