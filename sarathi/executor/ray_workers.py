"""A team of workers, one actor of Ray a rank: started, asked together, and ended together when one of them fails.

Knows neither models nor rounds: what it sends is pickled, and what comes back goes to whoever asked.
"""

from __future__ import annotations

import pickle
import weakref
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, wait
from contextlib import suppress
from typing import Any, NoReturn

import psutil

from sarathi.clock import host_time
from sarathi.errors import FieldError, WorkerLostError, one_line
from sarathi.executor.ray_cluster import Reservation, nodes_by_id
from sarathi.executor.ray_failures import exit_detail, is_of_a_peer, log_lines
from sarathi.executor.ray_session import Session, check_process, current_session
from sarathi.executor.ray_watch import RayWatch
from sarathi.executor.ray_worker import Host, RayWorker, Refused, Team

START_SECONDS = 60.0  # for the processes to start, before a model is loaded
VERDICT_SECONDS = 3.0  # for a death to become known, once a rank has lost its peer
WATCH_SECONDS = 1.0  # between looks at what no answer tells of

Answers = list[Future[Any]]  # to one question, by rank


class RayWorkers:
    """The ranks of one model, stage by stage.

    Args:
        reservation: where they run; released when they end.
        make_worker: called by each rank in its own process; gives the rank's worker.
        timeout: seconds after which an answer counts as lost.

    Whatever goes wrong in one worker ends all of them: RuntimeError that names its rank, WorkerLostError where its
    process is gone or silent, or the cluster is. A model that is not loaded in `timeout` is a FieldError of that;
    FieldErrors of workers arrive as such. At the latest the workers end with this object.
    """

    def __init__(
        self,
        reservation: Reservation,
        make_worker: Callable[[Team], Any],
        *,
        tensor_size: int,
        num_stages: int,
        timeout: float,
    ) -> None:
        import ray

        session = current_session()
        assert session is not None
        self._session = session
        self._tensor_size = tensor_size
        self._timeout = START_SECONDS
        self._is_loaded = False  # since the first round
        self._ended = ""  # why there are no workers any more
        self._unanswered: list[Answers] = []  # oldest first
        self._progress_time = 0.0  # host time when the oldest of them became the oldest
        self._actors: list[Any] = []
        self._hosts: list[Host] = []
        self._processes: list[psutil.Process] = []  # of those on this machine
        self._nodes = nodes_by_id()
        self._cluster = RayWatch(session)
        self._watch_time = host_time()
        self._close = weakref.finalize(self, _close, session, self._actors, self._processes, reservation)
        actor_class = ray.remote(RayWorker)
        try:
            for index, slot in enumerate(reservation.slots):
                self._actors.append(actor_class.options(**reservation.options(index)).remote(slot.device))
            self._hosts = self._get(self._ask(lambda actor, rank: actor.host.remote()))
            here = ray.get_runtime_context().get_node_id()
            self._cluster.raylets |= {self._nodes[name] for name in (here, *(host.node_id for host in self._hosts))}
            self._processes += [psutil.Process(host.pid) for host in self._hosts if host.node_id == here]
            if not reservation.is_mapped:
                self._sort_by_node()
            self._timeout = timeout
            teams = self._teams(num_stages)
            _accepted(self._get(self._ask(lambda actor, rank: actor.make.remote(make_worker, teams[rank]))))
        except BaseException:
            self.end("they did not start")
            raise

    def call(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """What that method of the worker gives, or the value of an attribute of that name, by rank."""
        return _accepted(self._get(self._ask(lambda actor, rank: actor.call.remote(method, *args, **kwargs))))

    def execute(self, message: object) -> Answers:
        """Have every rank execute a message, and return at once."""
        self._is_loaded = True
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)  # once, which Ray would do for every rank
        try:
            return self._ask(lambda actor, rank: actor.execute.remote(data))
        except BaseException as error:  # Ctrl-C too: a part of the ranks may have it
            self.end(f"a round did not reach all of them ({type(error).__name__})")
            raise

    def answers(self, asked: Answers, timeout: float | None = None) -> list[Any] | None:
        """What each rank gave; None where that takes longer than `timeout` seconds. Asked in order, got in order."""
        self._check()
        assert asked is self._unanswered[0]
        lost_time = self._progress_time + self._timeout
        until = lost_time if timeout is None else min(host_time() + timeout, lost_time)
        while True:
            self._watch()
            done, silent = wait(asked, max(0.0, min(until - host_time(), WATCH_SECONDS)), FIRST_EXCEPTION)
            if any(answer.exception() is not None for answer in done) or (silent and host_time() >= lost_time):
                self._fail([rank for rank, answer in enumerate(asked) if answer in silent])
            if not silent:
                break
            if host_time() >= until:
                return None
        self._unanswered.pop(0)
        self._progress_time = host_time()
        return [answer.result() for answer in asked]

    def drain(self, timeout: float) -> None:
        """Wait for what was asked and drop it. Workers that are not through in `timeout` seconds are ended."""
        deadline = host_time() + timeout
        try:
            while self._unanswered:
                if self.answers(self._unanswered[0], max(0.0, deadline - host_time())) is None:
                    self.end(f"a round that was broken off took longer than {timeout:g} seconds")
        except RuntimeError:
            assert self._ended  # which says why, to whoever asks next
        except BaseException:  # Ctrl-C once more
            self.end("interrupted")
            raise

    def end(self, why: str) -> None:
        """End every process; whatever is asked later is a RuntimeError that says why."""
        self._ended = self._ended or why
        self._unanswered.clear()
        self._close()

    def names(self) -> list[str]:
        """What each rank is: its place among the others, its process and node."""
        return [self._name(rank) for rank in range(len(self._actors))]

    def _ask(self, send: Callable[[Any, int], Any]) -> Answers:
        """`send` makes the call to one actor and returns Ray's reference to the answer."""
        self._check()
        asked = [send(actor, rank).future() for rank, actor in enumerate(self._actors)]
        if not self._unanswered:
            self._progress_time = host_time()
        self._unanswered.append(asked)
        return asked

    def _get(self, asked: Answers) -> list[Any]:
        given = self.answers(asked)
        assert given is not None
        return given

    def _check(self) -> None:
        check_process(self._session.pid)
        if not (self._ended or self._session.is_current()):
            self._ended = "Ray was shut down"
        if self._ended:
            raise RuntimeError(f"the workers have ended: {self._ended}")

    def _watch(self) -> None:
        """Rounds go on without Ray's own processes, until Ray ends what it has."""
        if host_time() < self._watch_time + WATCH_SECONDS:
            return
        self._watch_time = host_time()
        if died := self._cluster.what_died():
            self._raise(WorkerLostError(died))

    def _sort_by_node(self) -> None:
        """Neighbouring ranks talk most: they are to be on one node."""
        nodes = [host.node_id for host in self._hosts]
        order = sorted(range(len(nodes)), key=lambda index: nodes.index(nodes[index]))
        self._actors[:] = [self._actors[index] for index in order]
        self._hosts = [self._hosts[index] for index in order]

    def _teams(self, num_stages: int) -> list[Team]:
        workers_on = Counter(host.node_id for host in self._hosts)
        first = self._hosts[0]
        address = self._nodes[first.node_id].address if len(workers_on) > 1 else "127.0.0.1"
        init_method = f"tcp://{address}:{first.free_port}"
        return [
            Team(rank, self._tensor_size, num_stages, init_method, workers_on[host.node_id], host.num_cores)
            for rank, host in enumerate(self._hosts)
        ]

    def _name(self, rank: int) -> str:
        stage, tensor_rank = divmod(rank, self._tensor_size)
        where = ""
        if self._hosts:
            host = self._hosts[rank]
            where = f"; process {host.pid} on {self._nodes[host.node_id].address}"
        return f"rank {rank} (stage {stage}, tensor rank {tensor_rank}{where})"

    def _fail(self, late: list[int]) -> NoReturn:
        """Find out which rank failed, and not only lost a peer that did; end all and raise what is to be told.

        `late` are those that have not answered the oldest question.
        """
        from ray.exceptions import RayTaskError

        # Who died after its last answer, or hangs, says nothing unless it is asked again.
        probes = [actor.host.remote().future() for actor in self._actors]
        asked = [*self._unanswered, probes]
        deadline = host_time() + VERDICT_SECONDS
        while True:
            answers = [(rank, answer) for by_rank in asked for rank, answer in enumerate(by_rank)]
            errors = [(rank, answer.exception()) for rank, answer in answers if answer.done()]
            failed = [(rank, error) for rank, error in errors if error is not None]
            dead = [(rank, error) for rank, error in failed if not isinstance(error, RayTaskError)]
            faulty = [(rank, error) for rank, error in failed if not is_of_a_peer(error)]
            open_answers = [answer for _, answer in answers if not answer.done()]
            left = deadline - host_time()
            if dead or faulty or left < 0 or not open_answers:
                break
            wait(open_answers, left, FIRST_COMPLETED)
        if dead:
            rank, error = dead[0]
            self._raise(self._death(rank, error), error)
        silent = [rank for rank, probe in enumerate(probes) if not probe.done()]
        if (silent and not faulty) or not failed:
            self._raise(self._silence(", ".join(map(self._name, silent or late))))
        rank, error = (faulty or failed)[0]
        cause = getattr(error, "cause", error)
        what = "lost a peer" if is_of_a_peer(error) else "failed"
        self._raise(RuntimeError(one_line(f"{self._name(rank)} {what}: {type(cause).__name__}: {cause}")), error)

    def _silence(self, ranks: str) -> WorkerLostError | FieldError:
        if self._is_loaded or not self._hosts:
            return WorkerLostError(f"no answer in {self._timeout:g} seconds: {ranks}")
        return FieldError("timeout", f"{self._timeout:g} seconds were not enough to load the model: {ranks}")

    def _death(self, rank: int, error: BaseException) -> WorkerLostError:
        if died := self._cluster.what_died():  # and the rank with it
            return WorkerLostError(died)
        lost = WorkerLostError(f"{self._name(rank)} died: {exit_detail(error)}")
        lines = log_lines(self._hosts[rank].log) if self._hosts else []
        if lines:
            lost.add_note(one_line(f"its log {self._hosts[rank].log} ends with: {lines[-1]}"))
        return lost

    def _raise(self, error: RuntimeError | FieldError, cause: BaseException | None = None) -> NoReturn:
        self.end(str(error))
        raise error from cause


def _close(session: Session, actors: list[Any], processes: list[psutil.Process], reservation: Reservation) -> None:
    """Without the team, so that it can be collected. In another process or another stay in Ray it has no effect."""
    import ray

    if not session.is_current():
        return
    for process in processes:  # at once, and also where Ray cannot
        with suppress(psutil.NoSuchProcess):
            process.kill()
    if session.gcs_answers():
        for actor in actors:
            ray.kill(actor)
        reservation.release()
    actors.clear()


def _accepted(given: list[Any]) -> list[Any]:
    for answer in given:
        if isinstance(answer, Refused):
            raise FieldError(answer.field, answer.text)
    return given
