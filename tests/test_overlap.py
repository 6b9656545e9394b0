"""Rounds made one ahead of the results: the same tokens, nothing left behind, the scheduler truly beside the model."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from sarathi import LLM, RequestOutput, SamplingParams
from sarathi.core.plan import StepResult
from sarathi.core.variants import SCHEDULERS
from sarathi.executor.local import LocalExecutor
from tests import local_engine as real
from tests.simulate import LinearPredictor, assert_drained, make_request, make_scheduler

VOCAB = real.SIZES["vocab_size"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    real.make_tiny("qwen3", folder)
    return folder


def answers(llm: LLM, params: SamplingParams | Sequence[SamplingParams], num_prompts: int = 6) -> list[RequestOutput]:
    prompts = real.random_prompts([40, 9, 1, 70, 33, 16][:num_prompts], VOCAB)
    outputs = llm.generate(prompts, params)
    system = llm.llm_engine.system
    assert_drained(system.scheduler)
    system.scheduler.blocks.check_all_free()
    return outputs


def told(outputs: Sequence[RequestOutput]) -> list[tuple[list[int], str | None]]:
    return [(output.token_ids, output.finish_reason) for output in outputs]


@pytest.mark.parametrize("scheduler", sorted(SCHEDULERS))
def test_every_scheduler_gives_the_same_tokens(folder: Path, scheduler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sarathi.system.scheduler._load_predictor", lambda config, device: LinearPredictor())
    params = [
        SamplingParams(temperature=0, max_tokens=20, ignore_eos=True),
        SamplingParams(temperature=0.9, top_p=0.8, seed=3, max_tokens=11, ignore_eos=True),
        SamplingParams(temperature=0, repetition_penalty=1.4, max_tokens=20, ignore_eos=True),
        SamplingParams(temperature=0, max_tokens=1, ignore_eos=True),
        SamplingParams(temperature=0.7, frequency_penalty=1.0, seed=8, max_tokens=15, ignore_eos=True),
        SamplingParams(temperature=0, max_tokens=0, ignore_eos=True),
    ]
    settings = {"num_threads": 1, "dtype": "float32", "num_gpu_blocks": 60, "max_num_seqs": 3, "max_model_len": 128}
    plain, ahead = (
        told(answers(LLM(str(folder), scheduler=scheduler, overlap=overlap, **settings), params))
        for overlap in (False, True)
    )
    assert ahead == plain


def test_a_stop_token_is_known_one_round_late(folder: Path) -> None:
    """The round that was made before it was known gives a token that nobody sees."""
    plain = answers(real.make_llm(folder, 32), SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
    stops = tuple({output.token_ids[index % 7 + 1] for index, output in enumerate(plain)})
    params = SamplingParams(temperature=0, max_tokens=12, stop_token_ids=stops)
    expected = told(answers(real.make_llm(folder, 32), params))
    assert {reason for _, reason in expected} >= {"stop"}
    assert told(answers(real.make_llm(folder, 32, overlap=True), params)) == expected


def test_preempted_requests_too(folder: Path, tmp_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    settings = {"num_gpu_blocks": 12, "max_model_len": 120}
    expected = told(answers(real.make_llm(folder, 16, **settings), params))
    llm = real.make_llm(folder, 16, overlap=True, output_dir=str(tmp_path), **settings)
    assert told(answers(llm, params)) == expected
    assert llm.llm_engine.plot_metrics()["num_preemptions"] > 0


def test_the_next_round_is_made_while_one_runs(folder: Path) -> None:
    """Were it not, the worker would wait here for a scheduler that waits for it."""
    llm = real.make_llm(folder, 32, overlap=True)
    executor = llm.llm_engine.system.executor
    assert isinstance(executor, LocalExecutor)
    made = threading.Semaphore(0)
    execute, submit = executor._execute, executor.submit
    num_waits = 0

    def submitted(output) -> None:
        submit(output)
        made.release()

    def executed(message) -> StepResult:
        nonlocal num_waits
        made.acquire()  # its own
        if num_waits < 5:
            num_waits += 1
            assert made.acquire(timeout=20), "no round was made while this one ran"
            made.release()
        return execute(message)

    executor._execute, executor.submit = executed, submitted
    (output,) = answers(llm, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True), 1)
    assert len(output.token_ids) == 8 and num_waits == 5


def test_an_interrupt_leaves_an_engine_that_works(folder: Path) -> None:
    llm = real.make_llm(folder, 32, overlap=True)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    expected = told(answers(llm, params))
    executor = llm.llm_engine.system.executor
    wait, num_rounds = executor.wait, 0

    def interrupted(until=None):
        nonlocal num_rounds
        num_rounds += 1
        if num_rounds == 3:
            raise KeyboardInterrupt
        return wait(until)

    executor.wait = interrupted
    with pytest.raises(KeyboardInterrupt):
        answers(llm, params)
    executor.wait = wait
    assert told(answers(llm, params)) == expected


def test_a_failing_round_is_told(folder: Path) -> None:
    llm = real.make_llm(folder, 32, overlap=True)
    executor = llm.llm_engine.system.executor
    assert isinstance(executor, LocalExecutor)
    execute = executor.worker.execute

    def failing(message):
        raise TimeoutError("the device hangs")

    executor.worker.execute = failing
    with pytest.raises(TimeoutError, match="the device hangs"):
        llm.generate([[1, 2, 3]], SamplingParams(max_tokens=2))
    executor.worker.execute = execute
    assert len(answers(llm, SamplingParams(temperature=0, max_tokens=2))) == 6


@pytest.mark.parametrize(("overlap", "num_ahead"), [(False, 0), (True, 1)])
def test_room_is_made_by_the_latest_even_if_it_must_be_waited_for(overlap: bool, num_ahead: int) -> None:
    """A needs a block and there is none. C, the latest, is in flight with overlap: it is held until it is not."""
    scheduler = make_scheduler(num_blocks=6, block_size=4, chunk_size=64)
    scheduler.overlap = overlap
    a, b, c = requests = [make_request(name, prompt, 9) for name, prompt in (("a", 7), ("b", 5), ("c", 5))]
    for request in requests:
        scheduler.add(request, 0.0)
    rounds = [scheduler.schedule(0.0) for _ in range(1 + num_ahead)]
    decisions = []
    for _ in range(4):
        output = rounds.pop(0)
        if output is not None:
            decisions.append(("".join(r.request_id for r in output.decodes), output.preempted_ids))
            scheduler.update(output, StepResult([5] * output.num_seqs, 0.01), 0.01)
        rounds.append(scheduler.schedule(0.01))
    taken = [names for names, _ in decisions]
    preempted = [request_id for _, ids in decisions for request_id in ids]
    assert a.num_preemptions == b.num_preemptions == 0 and c.num_preemptions == 1, (taken, preempted)
    assert taken[:2] == ["", "abc"] and taken[2] == ("ab" if not overlap else "b"), taken
