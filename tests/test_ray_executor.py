"""A model cut among workers of Ray gives the tokens of one process, under every scheduler and after interrupts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("ray")

import numpy as np
import psutil
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from sarathi import LLM, SamplingParams
from sarathi.config import system_config_from
from sarathi.core.plan import MemoryStats
from sarathi.core.variants import SCHEDULERS
from sarathi.errors import FlagError
from sarathi.executor.local import LocalParts
from sarathi.executor.ray import RayExecutor, _combined
from sarathi.system import load_shared_parts
from sarathi.worker.batch import WorkerOutput
from tests import local_engine as real
from tests.ray_workers import all_end, ray_cluster
from tests.simulate import LinearPredictor, assert_drained, make_request, make_scheduler

pytestmark = pytest.mark.xdist_group("ray")  # one process for all: each would start workers of its own
VOCAB = real.SIZES["vocab_size"]
SETTINGS: dict[str, Any] = {
    "dtype": "float32", "num_threads": 1, "num_gpu_blocks": 40, "max_num_seqs": 4, "max_model_len": 128,
}  # fmt: skip
PARAMS = [
    SamplingParams(temperature=0, max_tokens=12, ignore_eos=True),
    SamplingParams(temperature=0.9, top_p=0.8, seed=3, max_tokens=9, ignore_eos=True),
    SamplingParams(temperature=0, repetition_penalty=1.4, max_tokens=12, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=0, max_tokens=1, ignore_eos=True),
    SamplingParams(temperature=0.7, frequency_penalty=1.0, seed=8, max_tokens=11, ignore_eos=True),
    SamplingParams(temperature=0, max_tokens=0, ignore_eos=True),
]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with ray_cluster():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(1)
    config = Qwen3Config(**real.SIZES | {"num_hidden_layers": 4}, head_dim=16, tie_word_embeddings=True)
    Qwen3ForCausalLM(config).eval().save_pretrained(folder)
    return folder


def settings_of(tensor_size: int, num_stages: int) -> dict[str, Any]:
    cut = {"tensor_parallel_size": tensor_size, "pipeline_parallel_size": num_stages}
    return {**SETTINGS, **cut, "executor": "ray", "device": "cpu"}


def load(model: Path | str, tensor_size: int, num_stages: int, **settings: Any) -> LocalParts:
    parts = load_shared_parts([system_config_from(str(model), settings_of(tensor_size, num_stages) | settings)])
    assert parts is not None
    return parts


@pytest.fixture(scope="module")
def parts(folder: Path) -> LocalParts:
    return load(folder, 2, 2)


def on(parts: LocalParts, **settings: Any) -> LLM:
    """An engine on workers that are there already."""
    config, sizes = parts.config, parts.config.parallel_config
    cut = settings_of(sizes.tensor_parallel_size, sizes.pipeline_parallel_size)
    return LLM(config.model_config.model, parts=parts, **{**cut, **settings})


def answers(llm: LLM, params: SamplingParams | Sequence[SamplingParams] = PARAMS) -> list[tuple[Any, ...]]:
    outputs = llm.generate(real.random_prompts([40, 9, 1, 70, 33, 16], VOCAB), params)
    assert_drained(llm.llm_engine.system.scheduler)
    return [(output.token_ids, output.finish_reason, output.logprobs is not None) for output in outputs]


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[tuple[Any, ...]]:
    return answers(LLM(str(folder), **SETTINGS))


@pytest.mark.parametrize("scheduler", sorted(SCHEDULERS))
def test_every_scheduler_gives_the_tokens_of_one_process(
    scheduler: str, parts: LocalParts, expected: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sarathi.system.scheduler._load_predictor", lambda config, device: LinearPredictor())
    assert answers(on(parts, scheduler=scheduler)) == expected


def test_a_system_on_workers_knows_what_it_runs_on(parts: LocalParts) -> None:
    llm = on(parts, chunk_size=24)
    system = llm.llm_engine.system
    assert (system.simulated, system.device, system.dtype_bytes, system.num_gpu_blocks) == (False, "cpu", 4, 40)
    assert system.executor.max_inflight_steps == 2 and not system.executor.overlap
    told = system.metadata(llm.llm_engine.config)
    assert (told["tensor_parallel_size"], told["pipeline_parallel_size"]) == (2, 2)
    assert any(re.fullmatch(r"rank 3 \(stage 1, tensor rank 1; process \d+ on [\d.]+\)", note) for note in system.notes)
    llm.generate([[1, 2, 3]], PARAMS[0])
    memory = llm.llm_engine.pull_worker_metrics()
    assert memory["gpu_mem_used_mb"] > 50 and memory["cuda_allocated_mb"] > 0


def test_an_abort_in_mid_flight_leaves_no_block(parts: LocalParts) -> None:
    llm = on(parts, chunk_size=24)
    engine = llm.llm_engine
    prompts = real.random_prompts([60, 60, 50, 40, 30, 20], VOCAB)
    ids = [engine.add_request(None, PARAMS[0], prompt) for prompt in prompts]
    for count, request_id in enumerate(ids[:-1]):
        for _ in range(count):
            engine.step()
        engine.abort_request(request_id)
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert {output.seq_id for output in outputs if output.finish_reason == "length"} == {ids[-1]}
    assert_drained(engine.system.scheduler)
    engine.system.scheduler.blocks.check_all_free()


def test_an_interrupted_round_leaves_workers_that_serve_the_next(
    parts: LocalParts, expected: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = on(parts, chunk_size=24)
    wait, left = llm.llm_engine.system.executor.wait, 3

    def interrupted(until: float | None = None) -> Any:
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt
        return wait(until)

    monkeypatch.setattr(llm.llm_engine.system.executor, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        answers(llm)
    assert answers(llm) == expected and answers(on(parts)) == expected


def test_a_wait_ends_when_a_request_arrives(parts: LocalParts) -> None:
    executor = on(parts, chunk_size=24).llm_engine.system.executor
    assert isinstance(executor, RayExecutor)
    scheduler = make_scheduler("SARATHI", num_blocks=40)
    request = make_request("a", 30, 2)
    scheduler.add(request, 0.0)
    output = scheduler.schedule(0.0)
    assert output is not None
    executor.submit(output)
    assert executor.wait(executor._clock.now() - 1.0) is None  # no round is as quick as that
    result = executor.wait()
    assert result is not None and len(result.token_ids) == 1 and 0 < result.execution_time < 60
    executor.shutdown()


def test_operators_are_timed_on_every_rank(parts: LocalParts, expected: list[tuple[Any, ...]]) -> None:
    """The last round of these workers: they go on timing."""
    llm = on(parts, chunk_size=24)
    executor = llm.llm_engine.system.executor
    assert executor.time_operators()
    wait, times = executor.wait, []

    def noting(until: float | None = None) -> Any:
        result = wait(until)
        times.append(result.operator_times)
        assert sum(times[-1].values()) == pytest.approx(result.execution_time)
        return result

    executor.wait = noting
    assert answers(llm) == expected
    assert any(time["attn"] > 0 and time["mlp_up_proj"] > 0 for time in times)


def test_a_shutdown_ends_the_workers_of_an_engine_that_loaded_them(
    parts: LocalParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last test of these workers."""
    others = on(parts)
    others.shutdown()
    with pytest.raises(RuntimeError, match="the engine was shut down"):
        others.generate([[1]], PARAMS[0])
    monkeypatch.setattr("sarathi.entrypoints.llm_engine.load_shared_parts", lambda configs: parts)
    config, sizes = parts.config, parts.config.parallel_config
    llm = LLM(
        config.model_config.model, **settings_of(sizes.tensor_parallel_size, sizes.pipeline_parallel_size)
    )  # as if it had loaded them itself
    processes = [psutil.Process(int(note.split("process ")[1].split()[0])) for note in parts.notes[1:]]
    assert llm.generate([[1, 2]], PARAMS[0])[0].finish_reason == "length"
    llm.shutdown()
    llm.shutdown()
    assert len(processes) == 4 and all_end(processes, 10)
    with pytest.raises(RuntimeError, match="the workers have ended: the model was shut down"):
        on(parts).generate([[1, 2]], PARAMS[0])


def test_heads_that_cannot_be_cut_are_refused_before_anything_starts(folder: Path) -> None:
    with pytest.raises(FlagError, match=r"^--parallel_config_tensor_parallel_size: 4 .*heads"):
        load(folder, 4, 1)


@pytest.mark.slow
def test_what_does_not_fit_is_refused_as_in_one_process(folder: Path) -> None:
    with pytest.raises(FlagError, match=r"^--cache_config_num_gpu_blocks: 9999999 blocks of 16 tokens need"):
        load(folder, 1, 1, num_gpu_blocks=9_999_999)


@pytest.mark.slow
def test_overlap_on_two_tensor_ranks_gives_the_same_tokens(folder: Path, expected: list[tuple[Any, ...]]) -> None:
    parts = load(folder, 2, 1, overlap=True)
    for scheduler in ("sarathi", "aging", "vllm"):
        llm = on(parts, overlap=True, scheduler=scheduler)
        assert llm.llm_engine.system.executor.max_inflight_steps == 2
        assert answers(llm) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("tensor_size", "num_stages"), [(1, 2), (1, 4)])
def test_a_pipeline_under_load_with_preemption_and_aborts(
    tensor_size: int, num_stages: int, folder: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"num_gpu_blocks": 40, "max_num_seqs": 16, "chunk_size": 64}
    rng = np.random.default_rng(5)
    prompts = real.random_prompts(rng.integers(1, 90, 200).tolist(), VOCAB)
    params = [SamplingParams(temperature=0, max_tokens=int(n), ignore_eos=True) for n in rng.integers(1, 38, 200)]
    expected = [output.token_ids for output in LLM(str(folder), **{**SETTINGS, **settings}).generate(prompts, params)]
    llm = on(load(folder, tensor_size, num_stages, **settings), **settings, output_dir=str(tmp_path))
    assert [output.token_ids for output in llm.generate(prompts, params)] == expected
    engine = llm.llm_engine
    ids = [engine.add_request(None, each, prompt) for prompt, each in zip(prompts, params, strict=True)]
    aborted = set(ids[::3])
    given: dict[str, list[int]] = {}
    for number in itertools.count():
        if number % 3 == 2 and aborted:
            engine.abort_request(aborted.pop())
        if not engine.has_unfinished_requests():
            break
        given |= {output.seq_id: output.token_ids for output in engine.step() if output.finish_reason == "length"}
    assert all(given[name] == tokens for name, tokens in zip(ids, expected, strict=True) if name in given)
    assert len(given) >= 200 - len(ids[::3])
    assert_drained(engine.system.scheduler)
    engine.system.scheduler.blocks.check_all_free()
    assert engine.plot_metrics()["num_preemptions"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("tensor_size", "num_stages"), [(3, 1), (1, 2), (1, 3)])
def test_smollm2_on_workers_gives_the_tokens_of_one_process(tensor_size: int, num_stages: int) -> None:
    settings: dict[str, Any] = {"num_gpu_blocks": 300, "chunk_size": 64, "max_model_len": 1024}
    prompts = real.random_prompts([200, 5, 77, 300, 31], 49152)
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    expected = [output.token_ids for output in LLM("smollm2", **{**SETTINGS, **settings}).generate(prompts, params)]
    llm = on(load("smollm2", tensor_size, num_stages, **settings), **settings)
    assert [output.token_ids for output in llm.generate(prompts, params)] == expected


def test_every_round_tells_the_operators_of_all_stages() -> None:
    """Whichever stage was the slowest: a table of operators has the same columns for each round."""
    first, last = {"embedding": 1.0, "attn": 3.0}, {"attn": 2.0, "norm": 0.5}
    for times, expected in (
        ((4.0, 2.5), {"embedding": 1.0, "attn": 3.0, "norm": 0.0}),
        ((1.0, 2.5), {"embedding": 0.0, "attn": 2.0, "norm": 0.5}),
    ):
        given = [WorkerOutput([7] * rank, None, times[rank], MemoryStats(), (first, last)[rank]) for rank in range(2)]
        combined = _combined(given, 1)
        assert (combined.token_ids, combined.execution_time) == ([7], max(times))
        assert list((combined.operator_times or {}).items()) == list(expected.items())
