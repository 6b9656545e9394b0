"""What every engine of `make bench-engine` is given and gives back, and how the two cross a pipe: JSON, a line each.

Standard library only: it is imported by interpreters that have one rival installed and nothing else.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class JobRequest:
    prompt_token_ids: list[int]
    num_output_tokens: int  # exactly so many: end-of-text tokens are ordinary
    arrival_time: float = 0.0  # seconds from the start of the job


@dataclass(frozen=True)
class Answer:
    """Tokens of one request, and when each was there to be read: seconds from the start of the job."""

    token_ids: list[int]
    token_times: list[float]


@dataclass(frozen=True)
class EngineSettings:
    """What all engines of a comparison have in common, and what only ours or vLLM has."""

    model: str  # as the engine reads it: a folder, a file, or a known name
    num_threads: int
    max_num_seqs: int
    max_model_len: int  # tokens of the longest request
    max_num_tokens: int  # of a round
    scheduler: dict[str, Any] = field(default_factory=dict)  # of ours
    compiled: bool = False  # vLLM's model, with torch.compile


Run = Callable[[Sequence[JobRequest], bool], list[Answer]]


def serve(load: Callable[[EngineSettings], tuple[str, Run]]) -> None:
    """Be an engine at the end of a pipe: settings in, its name out, then jobs in and answers out until the pipe ends.

    `load` returns the engine's name with its version, and what runs a job; that is told whether tokens must be seen
    one by one as they come. Whatever else the engine prints goes to stderr.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    name, run = load(EngineSettings(**json.loads(sys.stdin.readline())))
    print(json.dumps(name), file=answers, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        given = run([JobRequest(**request) for request in job["requests"]], job["streamed"])
        print(json.dumps([asdict(answer) for answer in given]), file=answers, flush=True)


def job_line(requests: Sequence[JobRequest], streamed: bool) -> str:
    return json.dumps({"requests": [asdict(request) for request in requests], "streamed": streamed}) + "\n"


def answers_from(line: str) -> list[Answer]:
    return [Answer(**answer) for answer in json.loads(line)]


class Arrivals:
    """Hands out a job's requests as their time comes."""

    def __init__(self, requests: Sequence[JobRequest]) -> None:
        self._left = sorted(enumerate(requests), key=lambda pair: (pair[1].arrival_time, pair[0]), reverse=True)
        self._started = time.perf_counter()

    def __bool__(self) -> bool:
        """Whether some are still to come."""
        return bool(self._left)

    def now(self) -> float:
        return time.perf_counter() - self._started

    def due(self, idle: bool) -> list[tuple[int, JobRequest]]:
        """Those that have arrived since the last call, with their numbers; waits for the next one where `idle`."""
        if idle and self._left:
            time.sleep(max(0.0, self._left[-1][1].arrival_time - self.now()))
        due: list[tuple[int, JobRequest]] = []
        while self._left and self._left[-1][1].arrival_time <= self.now():
            due.append(self._left.pop())
        return due
