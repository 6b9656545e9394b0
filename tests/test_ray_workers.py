"""Workers of Ray without a model: where they are placed, what they answer, and how one that fails ends them all."""

from __future__ import annotations

import multiprocessing
import re
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

import ray

from sarathi.errors import FieldError, WorkerLostError
from sarathi.executor.ray_cluster import choose_device, reserve
from sarathi.executor.ray_session import join_or_start
from sarathi.executor.ray_workers import Answers, RayWorkers
from sarathi.worker.parallel import PeerError
from tests.ray_workers import NUM_CPUS, all_end, fake_workers, processes_of, ray_cluster, refuse_on_rank_1

pytestmark = pytest.mark.xdist_group("ray")  # one process for all: each would start workers of its own


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with ray_cluster():
        yield


def tokens(workers: RayWorkers, asked: Answers) -> list[list[int]]:
    given = workers.answers(asked)
    assert given is not None
    return [output.token_ids for output in given]


@pytest.fixture(scope="module")
def node() -> str:
    return ray.nodes()[0]["NodeManagerAddress"]


def test_answers_come_by_rank_and_in_the_order_of_the_questions() -> None:
    with fake_workers(3) as workers:
        slow, fast = workers.execute({1: [0.3, "answer"]}), workers.execute({})
        assert workers.answers(slow, timeout=0.05) is None
        assert tokens(workers, slow) == [[7], [8], [9]]
        assert tokens(workers, fast) == [[7], [8], [9]]
        with pytest.raises(FieldError, match="num_gpu_blocks: too many"):
            workers.call("refuse", 1)
        assert workers.call("refuse", 5) == [5, 5, 5] and workers.call("rank") == [0, 1, 2]


def test_the_rank_that_died_is_named_and_not_the_one_that_lost_it() -> None:
    with fake_workers() as workers:
        processes = processes_of(workers)
        workers.call("meet")
        asked = workers.execute({0: [0.0, "raise", PeerError("rank 1 is gone")], 1: [0.5, "die"]})
        started = time.monotonic()
        with pytest.raises(WorkerLostError) as lost:
            workers.answers(asked)
        assert time.monotonic() - started < 10
        place = rf"rank 1 (stage 1, tensor rank 0; process {processes[1].pid} on "
        assert str(lost.value).startswith(place) and "\n" not in str(lost.value)
        assert re.fullmatch(r"its log \S+ ends with: out of luck", lost.value.__notes__[0])
        assert all_end(processes, 5)
        with pytest.raises(RuntimeError, match="the workers have ended: rank 1"):
            workers.execute({})


@pytest.mark.slow
def test_a_death_after_the_last_answer_is_found() -> None:
    """Rank 0 is through with the round when it ends, so nothing that it was asked tells of it."""
    with fake_workers() as workers:
        workers.call("meet")
        asked = workers.execute({1: [0.5, "raise", PeerError("rank 0 is gone")]})
        assert asked[0].result().token_ids == [7]
        processes_of(workers)[0].kill()
        with pytest.raises(WorkerLostError, match=r"^rank 0 \(stage 0, "):
            workers.answers(asked)


@pytest.mark.slow
def test_the_rank_that_raised_is_named_and_its_error_is_the_cause() -> None:
    with fake_workers() as workers:
        processes = processes_of(workers)
        workers.call("meet")
        asked = workers.execute({0: [0.0, "raise", PeerError("silence")], 1: [0.5, "raise", KeyError("shape")]})
        with pytest.raises(RuntimeError, match=r"^rank 1 \(stage 1, .*\) failed: KeyError: 'shape'") as failed:
            workers.answers(asked)
        assert not isinstance(failed.value, WorkerLostError) and isinstance(failed.value.__cause__, KeyError)
        assert all_end(processes, 5)


@pytest.mark.slow
def test_silence_is_a_failure_and_what_is_broken_off_is_waited_for_only_a_while() -> None:
    with fake_workers(timeout=1.0) as workers:
        asked = workers.execute({1: [600.0, "answer"]})
        with pytest.raises(WorkerLostError, match=r"^no answer in 1 seconds: rank 1 \(stage 1[^,]*, [^,]*$"):
            workers.answers(asked)
    with fake_workers() as workers:
        workers.execute({1: [0.2, "answer"]})
        workers.execute({})
        workers.drain(10.0)
        assert tokens(workers, workers.execute({})) == [[7], [8]]
        workers.execute({1: [600.0, "answer"]})
        workers.drain(0.2)
        with pytest.raises(
            RuntimeError, match=r"have ended: a round that was broken off took longer than 0\.2 seconds"
        ):
            workers.call("rank")


@pytest.mark.slow
def test_only_the_rank_that_hangs_is_named_and_not_who_waited_for_it() -> None:
    with fake_workers(timeout=4.0) as workers:
        workers.call("meet")
        asked = workers.execute({0: [3.5, "raise", PeerError("silence")], 1: [600.0, "answer"]})
        workers.execute({0: [600.0, "answer"]})  # which rank 0 does not begin: the round before has failed
        with pytest.raises(WorkerLostError, match=r"^no answer in 4 seconds: rank 1 \([^,]*, [^,]*$"):
            workers.answers(asked)


@pytest.mark.slow
def test_a_model_that_is_not_loaded_in_time_is_a_matter_of_the_timeout() -> None:
    for seconds in (600.0, 2.0):  # silent, and only late
        refused = pytest.raises(FieldError, match=r"^timeout: 1 seconds were not enough to load the model: rank 1 \(")
        with fake_workers(timeout=1.0) as workers, refused:
            workers.call("load", {1: seconds})


def test_a_process_that_was_forked_is_refused() -> None:
    with fake_workers(1) as workers:
        context = multiprocessing.get_context("fork")
        told = context.SimpleQueue()

        def child() -> None:
            for use in (lambda: workers.call("rank"), lambda: join_or_start(None)):
                try:
                    use()
                except RuntimeError as error:
                    told.put(str(error))
            workers.end("the child is over")

        join_or_start(None)
        process = context.Process(target=child)
        process.start()
        process.join(20)
        assert process.exitcode == 0
        for _ in range(2):
            assert re.match(r"a process forked from process \d+, which uses Ray, cannot use it; ", told.get())
        assert workers.call("rank") == [0]


@pytest.mark.slow
def test_what_a_rank_refuses_when_it_starts_is_told_and_its_place_is_free_again() -> None:
    others = reserve(NUM_CPUS - 2, "cpu", None)
    try:
        for _ in range(2):
            with pytest.raises(FieldError, match="model: it does not fit"), fake_workers(make_worker=refuse_on_rank_1):
                pass
    finally:
        others.release()


def test_a_cluster_that_is_too_small_is_told_at_once(node: str) -> None:
    started = time.monotonic()
    with pytest.raises(FieldError) as small:
        reserve(9, "cpu", None)
    assert str(small.value) == (
        f"executor_config_type: RAY: the workers need 9 CPUs of the cluster; it has {node}: 8 CPUs, 2 GPUs"
    )
    with pytest.raises(FieldError, match="the workers need 3 CPUs, 3 GPUs of the cluster; it has"):
        reserve(3, "cuda", None)
    assert time.monotonic() - started < 2


def test_a_busy_cluster_is_told_with_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sarathi.executor.ray_cluster.RESERVE_SECONDS", 1.0)
    busy = reserve(6, "cpu", None)
    try:
        with pytest.raises(FieldError, match="the workers need 3 CPUs of the cluster; free are 2 CPUs"):
            reserve(3, "cpu", None)
    finally:
        busy.release()


def test_places_are_those_of_the_mapping(node: str) -> None:
    mapping = [[node, 1], [f"node:{node}", 0]]  # as Ray writes nodes, and upstream with it
    with fake_workers(2, device="cuda", mapping=mapping) as workers:
        assert workers.call("cuda_devices") == ["1", "0"]
    with fake_workers(2, device="cuda") as workers:
        assert sorted(workers.call("cuda_devices")) == ["0", "1"]


@pytest.mark.parametrize(
    ("device", "mapping", "said"),
    [
        (
            "cpu",
            [["10.9.9.9", 0], [None, 0]],
            "resource_mapping: 10.9.9.9 is no node of the Ray cluster; it has {node}: 8 ",
        ),
        ("cpu", [[None, 0]], "resource_mapping: 1 places for 2 workers"),
        (
            "cuda",
            [["{node}", 0], ["{node}", 2]],
            "resource_mapping: {node} has no device 2; the Ray cluster has {node}: ",
        ),
        ("cuda", [["{node}", 1], ["{node}", 1]], "resource_mapping: two workers are to have device 1 of {node}"),
    ],
)
def test_a_mapping_that_the_cluster_cannot_follow_is_refused(device, mapping, said, node: str) -> None:
    places = [[name and name.format(node=node), number] for name, number in mapping]
    with pytest.raises(FieldError) as refused:
        reserve(2, device, places)
    assert str(refused.value).startswith(said.format(node=node))


def test_the_device_is_what_the_cluster_has() -> None:
    assert [choose_device(name) for name in ("auto", "cpu", "cuda")] == ["cuda", "cpu", "cuda"]
    join_or_start("10.9.9.9:6379")  # this process is in a cluster, so it stays there
