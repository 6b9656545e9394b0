"""The sections of `make gpu-check` up to round times: attention, tokens, rounds. Each tells what it finds at once."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np
import torch

from benchmarks.gpu_check_setup import Report, simulated_twin
from benchmarks.rounds import make_round
from sarathi import LLM, SamplingParams
from sarathi.attention import make_backend
from sarathi.attention.base import AttentionLayout
from sarathi.attention.sdpa import SdpaBackend
from sarathi.simulation.devices import Device
from sarathi.simulation.latency import RoundLatency
from sarathi.simulation.models import ModelShape
from sarathi.worker.batch import Batch
from sarathi.worker.device import DTYPES
from sarathi.worker.worker import Worker

BLOCK_SIZE = 16
TOLERANCE = 2e-2  # of outputs of size 1 in bfloat16, which has 8 bits
AS_PREDICTED = (0.67, 1.5)  # measured over predicted time of a round


def shuffled(chunks: Sequence[tuple[int, int]]) -> np.ndarray:
    """As many blocks as these chunks need, in random order."""
    return np.random.default_rng(0).permutation(sum(-(-context // BLOCK_SIZE) for _, context in chunks))


@torch.inference_mode()
def attention(report: Report) -> None:
    """The device's own backend against the reference: outputs, and the pages that are written."""
    setup = report.setup
    device, dtype = torch.device(setup.device), DTYPES[setup.dtype]
    chunks = [(1, 37), (1, 512), (1, 16), (1, 1), (100, 100), (33, 161), (1, 80), (17, 32)]
    batch = make_round(chunks, BLOCK_SIZE, blocks=shuffled(chunks))
    num_blocks = sum(-(-context // BLOCK_SIZE) for _, context in chunks)
    for num_heads, num_kv_heads, head_dim in setup.head_sizes:
        layout = AttentionLayout(num_heads, num_kv_heads, head_dim, BLOCK_SIZE, (None, 48))
        backend = make_backend("AUTO" if setup.is_dry else "FLASHINFER", device, dtype, layout)
        generator = torch.Generator(device).manual_seed(0)

        def randn(*shape: int, generator: torch.Generator = generator) -> torch.Tensor:
            return torch.randn(shape, dtype=torch.float32, device=device, generator=generator).to(dtype)

        query = randn(batch.num_tokens, num_heads, head_dim)
        key, value = randn(batch.num_tokens, num_kv_heads, head_dim), randn(batch.num_tokens, num_kv_heads, head_dim)
        before = randn(num_blocks, 2, num_kv_heads, BLOCK_SIZE, head_dim)
        for window in layout.windows:
            outputs, written = [], []
            for one in (backend, SdpaBackend(device)):
                pages = before.clone()
                one.begin_round(batch)
                outputs.append(one.forward(query, key, value, pages, head_dim**-0.5, window).float())
                written.append(pages)
            error = (outputs[0] - outputs[1]).abs().max().item()
            what = f"{type(backend).__name__} = SDPA, {num_heads}/{num_kv_heads} heads of {head_dim}, window {window}"
            passed = error < TOLERANCE and torch.equal(*written)
            report.check(what, passed, f"largest difference {error:.1e}, pages {_same(torch.equal(*written))}")


def tokens(report: Report) -> None:
    """The same tokens from device and CPU in float32; how far those of 16 bits go along with them."""
    setup = report.setup
    rng = np.random.default_rng(1)
    limit = 60 if setup.is_dry else 400
    prompts = [rng.integers(1, 190, length).tolist() for length in rng.integers(1, limit, setup.num_prompts)]
    greedy = SamplingParams(temperature=0, max_tokens=setup.num_output_tokens, ignore_eos=True)
    drawn = SamplingParams(
        temperature=0.8, top_p=0.95, top_k=50, seed=7, max_tokens=setup.num_output_tokens, ignore_eos=True
    )

    def run(device: str, dtype: str, backend: str) -> tuple[list[list[int]], list[list[int]]]:
        llm = LLM(
            setup.token_model,
            load_format=setup.token_load_format,
            device=device,
            dtype=dtype,
            attention_backend=backend,
            num_gpu_blocks=1000,
            max_num_seqs=16,
            chunk_size=128,
        )
        texts = [llm.generate(prompts, params) for params in (greedy, drawn)]
        return [output.token_ids for output in texts[0]], [output.token_ids for output in texts[1]]

    expected = run("cpu", "float32", "AUTO")
    exact = run(setup.device, "float32", "SDPA")
    for kind, ours, reference in zip(("greedy", "drawn"), exact, expected, strict=True):
        same = sum(a == b for a, b in zip(ours, reference, strict=True))
        what = f"{kind} tokens of {setup.device} = those of the CPU, float32"
        report.check(what, same == len(ours), f"{same} of {len(ours)} requests")
    dtype = setup.dtype
    reference, ours = run(setup.device, dtype, "SDPA")[0], run(setup.device, dtype, "AUTO")[0]
    before = [_num_same(a, b) for a, b in zip(ours, reference, strict=True)]
    share = sum(before) / (len(before) * setup.num_output_tokens)
    what = f"greedy tokens in {dtype}, the device's own attention against SDPA"
    report.check(what, share > 0.5, f"{share:.0%} before the first that differs (rounding moves near ties)")
    num_firsts = sum(map(bool, before))
    report.check(f"first tokens in {dtype}", num_firsts >= 0.9 * len(before), f"{num_firsts} of {len(before)} the same")


@torch.inference_mode()
def rounds(report: Report) -> None:
    """Times of rounds of a large model with random weights: against what the card could do, and the simulator."""
    setup = report.setup
    worker = Worker(
        setup.round_model, load_format="dummy", device=setup.device, dtype=setup.dtype, gpu_memory_utilization=0.9
    )
    report.fact(worker.description)
    num_seqs, num_tokens = max(setup.decode_counts), max(setup.chunks) + setup.num_decodes_beside
    longest = max(setup.context, max(setup.chunks))
    sizes = {"max_num_seqs": num_seqs + 1, "max_num_tokens": num_tokens, "max_len": longest}
    worker.allocate_kv_cache(worker.max_num_blocks(**sizes), **sizes)
    for pages in worker._kv_caches:  # what rounds below read as context and nobody has written
        pages.zero_()
    worker.warm_up(num_tokens)
    name = "a CPU" if setup.is_dry else torch.cuda.get_device_name()
    twin = simulated_twin(name)
    if twin is None:
        report.fact(f"the simulator does not know {name}: times are not compared")
    report.fact(f"{'round':<28}{'ms':>9}{'no graph ms':>13}{'roofline ms':>13}{'simulated ms':>14}")
    for num_decodes, chunk in [
        *((count, 0) for count in setup.decode_counts),
        *((setup.num_decodes_beside, chunk) for chunk in setup.chunks),
    ]:
        chunks = [(1, setup.context)] * num_decodes + [(chunk, chunk)] * bool(chunk)
        batch = make_round(chunks, BLOCK_SIZE, blocks=shuffled(chunks), vocab_size=worker.architecture.vocab_size)
        measured = _median_time(worker, batch, setup.repetitions)
        worker._runner.use_graphs = False
        plain = _median_time(worker, batch, setup.repetitions)
        worker._runner.use_graphs = True
        what = f"{num_decodes} decodes at {setup.context}" + (f" + {chunk}" if chunk else "")
        line = f"{what:<28}{1e3 * measured:>9.2f}{1e3 * plain:>13.2f}"
        if twin is None:
            report.fact(line)
            continue
        roof, predicted = _bounds(worker.shape, twin, num_decodes, setup.context, chunk)
        report.fact(f"{line}{1e3 * roof:>13.2f}{1e3 * predicted:>14.2f}")
        ratio, low = measured / predicted, AS_PREDICTED[0]
        report.timing(f"{what}: not faster than the card", measured > roof, f"{roof / measured:.0%} of the roofline")
        report.timing(f"{what}: as simulated", low < ratio < AS_PREDICTED[1], f"{ratio:.2f} of the predicted time")
        if not chunk:
            report.timing(f"{what}: graphs help", measured < plain, f"{plain / measured:.2f} times as fast")


def _median_time(worker: Worker, batch: Batch, repetitions: int) -> float:
    for _ in range(3):
        worker.run(batch)
    return statistics.median(worker.run(batch).execution_time for _ in range(repetitions))


def _bounds(shape: ModelShape, device: Device, num_decodes: int, context: int, chunk: int) -> tuple[float, float]:
    """Seconds that the card's peak figures allow (weights and KV read once, or 2 FLOPs a weight); the simulator's."""
    num_seqs, num_tokens = num_decodes + bool(chunk), num_decodes + chunk
    layers = shape.num_layers * shape.layer_params()
    kv_tokens = num_decodes * context + chunk
    bytes_read = 2 * (layers + shape.embedding_params()) + shape.kv_bytes_per_token(dtype_bytes=2) * kv_tokens
    flops = 2 * (layers * num_tokens + shape.embedding_params() * num_seqs)
    roof = max(bytes_read / (device.memory_gb_per_s * 1e9), flops / (device.bf16_tflops * 1e12))
    prefills = [(chunk, 0)] if chunk else []
    return roof, RoundLatency(shape, device).gpu_time(num_decodes, num_decodes * context, prefills)


def _num_same(ours: Sequence[int], reference: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(ours, reference, strict=True)) if a != b), len(ours))


def _same(is_same: bool) -> str:
    return "the same" if is_same else "not the same"
