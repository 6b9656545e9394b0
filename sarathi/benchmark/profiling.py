"""The profile of a run: of the host's own code where rounds are simulated, of the model where they are real."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sarathi.errors import FlagError

logger = logging.getLogger(__name__)

PROFILED_ROUNDS = 32  # of a model: the first ones; of 30 layers a round is 5,000 events


@contextmanager
def profiled(directory: Path, simulated: bool) -> Iterator[Callable[[], None]]:
    """Profile what runs inside, and write it into `directory`; yields what is to be called after each round.

    Of simulated rounds: profile.pstats, cProfile's statistics of the whole run, which takes about twice as long. Of
    real ones: profile.json.gz, torch.profiler's Chrome trace of the first PROFILED_ROUNDS. A run that fails leaves no
    profile.
    """
    profile = _host_profile if simulated else _model_profile
    with profile(directory) as after_round:
        yield after_round


@contextmanager
def _host_profile(directory: Path) -> Iterator[Callable[[], None]]:
    import cProfile

    profile = cProfile.Profile()
    try:
        profile.enable()
    except ValueError as error:  # another profiler runs
        raise FlagError("enable_profiling", f"true does not work here: {error}") from error
    try:
        yield lambda: None
    finally:
        profile.disable()
    path = directory / "profile.pstats"
    part = path.with_name(path.name + ".part")
    profile.dump_stats(part)
    os.replace(part, path)
    logger.info("profile: %s, of the whole run; read it with: python -m pstats %s", path, path)


@contextmanager
def _model_profile(directory: Path) -> Iterator[Callable[[], None]]:
    import torch
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    profiler = profile(activities=activities)
    num_rounds = 0

    def after_round() -> None:
        nonlocal num_rounds
        if num_rounds < PROFILED_ROUNDS:
            num_rounds += 1
            if num_rounds == PROFILED_ROUNDS:
                profiler.stop()

    profiler.start()
    try:
        yield after_round
    finally:
        if num_rounds < PROFILED_ROUNDS:
            profiler.stop()
    path = directory / "profile.json.gz"
    part = path.with_name("profile.part.json.gz")  # torch compresses by the name's end
    profiler.export_chrome_trace(str(part))
    os.replace(part, path)
    logger.info("profile: %s, of the first %d rounds; open it in ui.perfetto.dev or chrome://tracing", path, num_rounds)
