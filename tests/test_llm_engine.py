"""LLMEngine and LLM: what goes in, what comes out, and that nothing of a request is left behind."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import sarathi.config as c
from sarathi import LLM, LLMEngine, SamplingParams
from sarathi.core.chunking import ChunkDecision, StaticBudget
from sarathi.core.scheduler import BaseScheduler
from tests import local_engine as real

VOCAB = real.SIZES["vocab_size"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    real.make_tiny("qwen3", folder)
    return folder


@pytest.fixture
def llm(folder: Path) -> Iterator[LLM]:
    llm = real.make_llm(folder, 32, num_gpu_blocks=40, max_model_len=200)
    yield llm
    engine = llm.llm_engine.system.scheduler
    assert not engine.requests
    engine.check_idle()
    engine.blocks.check_all_free()


def params(**settings) -> SamplingParams:
    return SamplingParams(**({"temperature": 0.0, "max_tokens": 5} | settings))


def run(engine: LLMEngine) -> dict[str, list]:
    """Every output by request, until nothing is left."""
    outputs: dict[str, list] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            outputs.setdefault(output.seq_id, []).append(output)
    return outputs


def test_upstreams_loop(folder: Path, tmp_path: Path) -> None:
    engine = LLMEngine.from_system_config(
        c.SystemConfig(
            model_config=c.ModelConfig(model=str(folder), dtype="float32"),
            cache_config=c.CacheConfig(num_gpu_blocks=50),
            scheduler_config=c.SarathiSchedulerConfig(chunk_size=8, max_num_seqs=4),
            replica_config=c.ReplicaConfig(output_dir=str(tmp_path / "out")),
            metrics_config=c.MetricsConfig(enable_chrome_trace=True, enable_cpu_op_level_metrics=True),
            slo_config=c.SloConfig(ttft=1000, classes={"hurried": {"ttft": 1e-9}}),
        )
    )
    prompts = real.random_prompts([5, 20, 3], VOCAB)
    for i, (prompt, tenant) in enumerate(zip(prompts, ("", "hurried", ""), strict=True)):
        settings = {"prompt_token_ids": prompt, "seq_id": f"r{i}", "tenant": tenant}
        assert engine.add_request(None, params(max_tokens=4), **settings) == f"r{i}"
    assert engine.get_num_unfinished_requests() == 3
    outputs = run(engine)
    assert engine.get_num_unfinished_requests() == 0
    for i, prompt in enumerate(prompts):
        steps = outputs[f"r{i}"]
        assert [len(output.token_ids) for output in steps] == [1, 2, 3, 4]
        assert [output.finished for output in steps] == [False, False, False, True]
        assert steps[-1].finish_reason == "length" and steps[-1].prompt_token_ids == prompt
        assert all(a.token_ids == b.token_ids[:-1] for a, b in itertools.pairwise(steps))
    assert engine.pull_worker_metrics()["gpu_mem_used_mb"] > 1
    summary = engine.plot_metrics()
    assert summary["num_finished"] == 3 and summary["simulated"] is False and summary["device"] == "cpu"
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"requests.csv", "rounds.csv", "summary.json", "chrome_trace.json", "plots", "report.html"} <= files
    assert summary["slo"]["num_with_target"] == 3 and summary["slo"]["num_met"] == 2
    assert summary["slo"]["classes"]["hurried"]["share_met"] == 0 and summary["cpu_operators"]["schedule"]["mean"] > 0
    engine.shutdown()


def test_a_prompt_that_can_never_run_says_why_and_the_others_run(llm: LLM) -> None:
    outputs = llm.generate([[1, 2], [3] * 300, [], [4]], params())
    assert [output.finish_reason for output in outputs] == ["length", "ignored", "ignored", "length"]
    assert outputs[1].error == "the prompt of 300 tokens exceeds the context of 200"
    assert "empty" in outputs[2].error and outputs[1].token_ids == []
    engine = llm.llm_engine
    engine.add_request(None, params(), prompt_token_ids=[3] * 300, seq_id="long")
    (output,) = engine.step()
    assert output.seq_id == "long" and output.finished and not engine.has_unfinished_requests()


def test_aborting_frees_everything_in_prefill_and_in_decode(llm: LLM) -> None:
    engine = llm.llm_engine
    for name, length in (("decoding", 4), ("in prefill", 150), ("waiting", 150)):
        engine.add_request(None, params(max_tokens=50), prompt_token_ids=[1] * length, seq_id=name)
    engine.step()
    engine.step()
    assert all(engine.abort_request(name) for name in ("decoding", "in prefill", "waiting"))
    assert not engine.abort_request("decoding") and not engine.abort_request("nobody")
    assert run(engine) == {}


def test_stop_tokens_end_of_text_and_min_tokens(llm: LLM) -> None:
    prompt = real.random_prompts([9], VOCAB)[0]
    free = llm.generate([prompt], params(max_tokens=8))[0].token_ids
    stop = free[2]
    first = free.index(stop)
    stopped = llm.generate([prompt], params(max_tokens=8, stop_token_ids=[stop]))[0]
    assert stopped.token_ids == free[: first + 1]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", stop)
    forced = llm.generate([prompt], params(max_tokens=8, stop_token_ids=[stop], min_tokens=6))[0].token_ids
    assert len(forced) >= 6 and stop not in forced[:6]


def test_a_seeded_request_gives_the_same_tokens_in_any_company(llm: LLM) -> None:
    prompts = real.random_prompts([12, 30, 7, 41], VOCAB, seed=5)
    seeded = params(temperature=1.0, seed=11, max_tokens=12)
    alone = llm.generate([prompts[0]], seeded)[0].token_ids
    others = [params(temperature=1.5, max_tokens=12, top_k=5 + i) for i in range(3)]
    together = llm.generate(prompts, [seeded, *others])[0].token_ids
    assert together == alone
    assert llm.generate([prompts[0]], params(temperature=1.0, seed=12, max_tokens=12))[0].token_ids != alone


def test_logprobs_of_greedy_tokens(llm: LLM) -> None:
    output = llm.generate([[5, 6, 7]], params(logprobs=2))[0]
    assert len(output.logprobs) == len(output.token_ids) == 5
    for token, entry in zip(output.token_ids, output.logprobs, strict=True):
        assert entry.rank == 1 and entry.top[0] == (token, entry.logprob) and len(entry.top) == 2
    assert llm.generate([[5, 6, 7]], params())[0].logprobs is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": None, "prompt_token_ids": [1, VOCAB]}, f"prompt_token_ids: {VOCAB} is not allowed"),
        ({"prompt": None, "prompt_token_ids": [-1]}, "prompt_token_ids: -1 is not allowed"),
        ({"prompt": None}, "prompt: None is not allowed"),
        ({"prompt": "text"}, "has no tokenizer here; give prompt_token_ids"),
        ({"prompt": None, "prompt_token_ids": [1], "arrival_time": 1e9}, "arrival_time: 1000000000.0 is not allowed"),
        (
            {"prompt": None, "prompt_token_ids": [1], "sampling_params": SamplingParams(stop_token_ids=[VOCAB])},
            f"SamplingParams.stop_token_ids: {VOCAB} is not allowed",
        ),
    ],
)
def test_what_is_not_allowed_is_told_and_leaves_nothing(llm: LLM, arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        llm.llm_engine.add_request(**arguments)
    assert not llm.llm_engine.has_unfinished_requests()


def test_a_batch_with_a_bad_prompt_queues_none_of_it(llm: LLM) -> None:
    with pytest.raises(ValueError, match="prompt_token_ids"):
        llm.generate([[1, 2], [VOCAB]], params())
    with pytest.raises(ValueError, match="2 for 3 prompts"):
        llm.generate([[1], [2], [3]], [params()] * 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"num_gpu_blocks": 10**7},
            "cache_config_num_gpu_blocks: 10000000 blocks of 16 tokens need .* GiB; .* left",
        ),
        (
            {"gpu_memory_utilization": 1e-9, "num_gpu_blocks": None},
            "gpu_memory_utilization: 1e-09 of the .* no KV block",
        ),
        ({"num_gpu_blocks": 2, "max_model_len": 200}, "model_config_max_model_len: 200 does not fit"),
        ({"chunk": 3}, "chunk: unknown setting"),
        ({"chunk_size": 10**9}, "rounds of 1,000,000,000 tokens .* need .* GiB for activations"),
        ({"output_dir": "/proc/nowhere"}, "output_dir: cannot write to /proc/nowhere"),
        ({"scheduler": "fastest"}, "fastest"),
        ({"dtype": "float8"}, "dtype"),
    ],
)
def test_settings_that_make_no_sense(folder: Path, settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        real.make_llm(folder, **({"chunk_size": 32} | settings))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bit_types_are_near_float32(folder: Path, dtype: str) -> None:
    prompts = real.random_prompts([20, 33], VOCAB)
    exact = real.make_llm(folder, 16).generate(prompts, params(logprobs=3, max_tokens=1))
    rough = real.make_llm(folder, 16, dtype=dtype).generate(prompts, params(logprobs=3, max_tokens=1))
    for a, b in zip(exact, rough, strict=True):
        assert a.logprobs and b.logprobs
        assert a.logprobs[0].top[0][1] == pytest.approx(b.logprobs[0].top[0][1], abs=0.15)


@pytest.mark.parametrize("backend", ["SDPA", "CPU_PAGED", "FLASHINFER"])
def test_attention_backends_give_the_same_tokens(folder: Path, backend: str) -> None:
    prompts = real.random_prompts([20, 33, 2], VOCAB)
    expected = [output.token_ids for output in real.greedy(real.make_llm(folder, 16), prompts, 8)]
    outputs = real.greedy(real.make_llm(folder, 16, attention_backend=backend), prompts, 8)
    assert [output.token_ids for output in outputs] == expected


@pytest.mark.parametrize("scheduler", ["vllm", "orca", "faster_transformer", "simple_chunking", "aging", "spf", "apc"])
def test_every_scheduler_gives_the_same_tokens(folder: Path, scheduler: str) -> None:
    prompts = real.random_prompts([20, 33, 2, 90], VOCAB)
    expected = [output.token_ids for output in real.greedy(real.make_llm(folder, 16), prompts, 8)]
    settings = {"num_threads": 1, "dtype": "float32", "num_gpu_blocks": 400, "max_num_seqs": 2, "max_model_len": 128}
    llm = LLM(str(folder), scheduler=scheduler, **settings)
    assert [output.token_ids for output in real.greedy(llm, prompts, 8)] == expected


def test_a_round_that_fails_leaves_an_engine_that_works(llm: LLM) -> None:
    prompts = real.random_prompts([40, 9], VOCAB)
    expected = [output.token_ids for output in llm.generate(prompts, params())]
    worker = llm.llm_engine.system.executor.worker  # pyright: ignore[reportAttributeAccessIssue]
    execute, num_rounds = worker.execute, 0

    def interrupted(batch):
        nonlocal num_rounds
        num_rounds += 1
        if num_rounds == 3:
            raise KeyboardInterrupt
        return execute(batch)

    worker.execute = interrupted
    with pytest.raises(KeyboardInterrupt):
        llm.generate(prompts, params())
    assert not llm.llm_engine.has_unfinished_requests()
    assert [output.token_ids for output in llm.generate(prompts, params())] == expected
    engine = llm.llm_engine
    seq_ids = [engine.add_request(None, params(), prompt_token_ids=prompt) for prompt in prompts]
    num_rounds = 0
    with pytest.raises(KeyboardInterrupt):
        run(engine)
    worker.execute = execute
    outputs = run(engine)  # what was under way starts again
    assert [outputs[seq_id][-1].token_ids for seq_id in seq_ids] == expected


def test_outputs_only_of_requests_that_got_a_token(folder: Path) -> None:
    engine = real.make_llm(folder, 4, max_num_seqs=2).llm_engine
    engine.add_request(None, params(max_tokens=2), prompt_token_ids=[1] * 5)  # one token of it is left after a chunk
    assert [len(engine.step()) for _ in range(3)] == [0, 1, 1]


def test_made_up_ids_avoid_those_in_use(llm: LLM) -> None:
    engine = llm.llm_engine
    engine.add_request(None, params(), prompt_token_ids=[1], seq_id="1")
    ids = [engine.add_request(None, params(), prompt_token_ids=[1]) for _ in range(2)]
    assert len({"1", *ids}) == 3
    run(engine)


def test_a_request_without_a_seed_is_none_of_the_seeded(llm: LLM) -> None:
    free = params(temperature=1.0, max_tokens=12)
    unseeded = llm.generate([[3, 4, 5]] * 3, free)
    seeded = llm.generate([[3, 4, 5]] * 3, [params(temperature=1.0, max_tokens=12, seed=seed) for seed in range(3)])
    assert len({tuple(output.token_ids) for output in [*unseeded, *seeded]}) == 6


def test_extremes_that_are_allowed(llm: LLM) -> None:
    greedy = llm.generate([[7, 8]], params())[0].token_ids
    assert llm.generate([[7, 8]], params(temperature=1.0, top_p=1e-46))[0].token_ids == greedy
    llm.generate([[7, 8]], params(temperature=1000.0, repetition_penalty=0.01, seed=-(2**62)))


@pytest.mark.parametrize("settings", [{"stop": 5}, {"stop_token_ids": 5}, {"repetition_penalty": 1e-46}, {"top_p": 0}])
def test_sampling_params_that_make_no_sense(settings: dict) -> None:
    with pytest.raises(ValueError, match=f"SamplingParams.{next(iter(settings))}: .* is not allowed"):
        SamplingParams(**settings)


class Stubborn(StaticBudget):
    def size(self, request, plan):
        return ChunkDecision(0)


class StubbornScheduler(BaseScheduler):
    def make_sizer(self):
        return Stubborn()


def test_policies_that_let_nothing_run_are_told(folder: Path) -> None:
    llm = real.make_llm(folder, 8, scheduler=f"{__name__}.StubbornScheduler")
    with pytest.raises(RuntimeError, match="StubbornScheduler makes no round though 1 requests wait"):
        llm.generate([[1, 2]], params())
    assert not llm.llm_engine.has_unfinished_requests()


def test_a_loaded_model_serves_only_its_own_settings(folder: Path) -> None:
    parts = real.load_parts(str(folder), 32)
    assert real.make_llm(folder, 16, parts=parts).generate([[1]], params())
    for settings in ({"block_size": 32}, {"dtype": "bfloat16"}):
        with pytest.raises(ValueError, match="the model was loaded with another"):
            real.make_llm(folder, 16, parts=parts, **settings)


def test_metrics_are_written_out_at_the_end(folder: Path, tmp_path: Path) -> None:
    llm = real.make_llm(folder, 16, output_dir=str(tmp_path / "out"), plots=False)
    llm.generate([[1, 2, 3]], params())
    llm.shutdown()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "requests.csv", "rounds.csv", "summary.json", "token_gaps.csv",
    }  # fmt: skip
    assert llm.llm_engine.plot_metrics()["num_finished"] == 1


def test_a_simulated_device_says_so(caplog: pytest.LogCaptureFixture) -> None:
    llm = LLM("smollm2", executor="simulated", wandb_project="x")
    assert "simulated device (rtx_4090)" in caplog.text and "wandb_project has no effect: no output_dir" in caplog.text
    with pytest.raises(ValueError, match="no tokenizer on a simulated device"):
        llm.generate(["text"])
    (output,) = llm.generate([[1, 2]], params(max_tokens=3))
    assert len(output.token_ids) == 3


def test_prompts_in_the_forms_that_people_have(llm: LLM) -> None:
    expected = llm.generate([[1, 2, 3]], params())[0].token_ids
    for prompts in (
        [1, 2, 3],
        (1, 2, 3),
        np.array([1, 2, 3]),
        np.array([[1, 2, 3]]),
        [np.array([1, 2, 3])],
        [range(1, 4)],
    ):
        (output,) = llm.generate(prompts, params())
        assert output.token_ids == expected
    assert llm.generate([], params()) == []
    for prompts in (None, 5, {"prompt": "x"}, {1, 2}, [1.5], [None], [[1], 2], [[[1]]]):
        with pytest.raises(ValueError, match=r"prompt.*: .* is not allowed"):
            llm.generate(prompts, params())  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"sampling_params": "greedy"}, "sampling_params"),
        ({"seq_id": []}, "seq_id"),
        ({"arrival_time": "now"}, "arrival_time"),
        ({"arrival_time": -1e308}, "arrival_time"),
        ({"sampling_params": SamplingParams(min_tokens=1, stop_token_ids=range(VOCAB))}, "SamplingParams.min_tokens"),
    ],
)
def test_arguments_of_the_wrong_kind(llm: LLM, arguments: dict, name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: "):
        llm.llm_engine.add_request(None, prompt_token_ids=[1], **arguments)
    assert not llm.llm_engine.abort_request([])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="sampling_params: 5 is not allowed"):
        llm.generate([[1]], 5)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("value", [np.array(0.5), np.array([0.5]), "0.5", True, float("nan")])
def test_numbers_of_the_wrong_kind(value: object) -> None:
    for name in ("temperature", "top_p", "min_p"):
        with pytest.raises(ValueError, match=f"SamplingParams.{name}: "):
            SamplingParams(**{name: value})  # pyright: ignore[reportArgumentType]
