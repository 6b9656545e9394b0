"""The process that records in Weights & Biases the run that writes into a folder, its one argument.

Started by WandbFollower. It hears a JSON line of settings on stdin, then `complete` or `failed` when the run is over
(an end of the pipe tells it too, when the run's process is gone), and answers on stdout in JSON lines: signs of
progress, and one with the key `line` at the end. It reads the run's files and knows nothing of the engine.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import select
import shutil
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from sarathi.metrics.run_folder import ROUND_TEXTS
from sarathi.metrics.wandb_end import number, record_end
from sarathi.metrics.wandb_follower import LOG, warning

if TYPE_CHECKING:
    import wandb

# While the run lasts at most so many rounds a poll are recorded: what a real device does in a second. A simulated run
# is faster than wandb whatever one does; the rest follows when it is over.
POLL_SECONDS, ROUNDS_PER_POLL = 1.0, 500
ROUNDS_PER_SIGN = 1000
MAX_ROUNDS_AFTER_FAILURE = 5_000  # a second or two: who stopped a run waits no longer; its CSV file has the rest
MIN_FREE_BYTES = 1 << 16
MAX_ERROR = 300  # characters of an error's text on the terminal; the log has all
INIT_SECONDS, UPLOAD_SECONDS = 30, 600  # limits, where the network is slow or gone


class Opened(NamedTuple):
    run: wandb.Run
    why_offline: str  # empty where it is online, or offline as asked


def main() -> int:
    directory = Path(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what wandb prints goes to the log

    def answer(key: str, value: object) -> None:
        with contextlib.suppress(OSError):  # nobody waits any more
            print(json.dumps({key: value}), file=answers, flush=True)

    try:
        line = _record(directory, open(0, "rb", buffering=0, closefd=False), answer)
    except Exception as error:
        with contextlib.suppress(OSError):  # of a full disk
            traceback.print_exc()
        line = warning(f"{_one_line(error)}; see {directory / LOG}")
        status = 1
    else:
        status = 0
    answer("line", line)
    return status


def _record(directory: Path, orders: IO[bytes], answer: Any) -> str:
    order = json.loads(orders.readline())
    opened = _open_run(directory, order)
    rounds = Rounds(opened.run, directory)
    while not select.select([orders], [], [], POLL_SECONDS)[0]:
        if not (directory / "rounds.csv").exists():  # else the run is over and the rest may come at once
            rounds.record(ROUNDS_PER_POLL)
    # An end of the pipe: the run's process is gone. With a summary the run is complete, though it may lack its views.
    said = orders.readline().strip()
    complete = said == b"complete" or (not said and (directory / "summary.json").exists())
    recorded, limit = 0, math.inf if complete else MAX_ROUNDS_AFTER_FAILURE
    while recorded < limit and (new := rounds.record(ROUNDS_PER_SIGN)):
        recorded += new
        answer("num_rounds", rounds.num_recorded)
    notes = [record_end(opened.run, directory, rounds.step)]
    if recorded >= limit:
        notes.append("its last rounds are in rounds.csv.part alone")
    answer("uploads", True)
    opened.run.finish(exit_code=0 if complete else 1)
    return "; ".join([_where(opened), *filter(None, notes)])


def _open_run(directory: Path, order: Mapping[str, Any]) -> Opened:
    # As wandb would see it in the run's own process, with its files in the run's folder.
    os.environ.setdefault("WANDB_PROGRAM", order["argv"][0])
    for name in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        os.environ.setdefault(name, str(directory / "wandb"))
    os.environ.setdefault("WANDB_INIT_TIMEOUT", str(INIT_SECONDS))
    sys.argv = list(order["argv"])
    try:
        import wandb
    except ModuleNotFoundError as error:
        raise RuntimeError(f"the package {error.name} is not installed (extra [wandb])") from error
    config = order["config"]
    settings = wandb.Settings(
        console="off",
        silent=True,
        disable_code=True,
        finish_timeout=UPLOAD_SECONDS,
        sweep_id=order["sweep_id"],
        x_stats_pid=os.getppid(),
        x_disable_stats=bool(config.get("simulated")),  # use of this host says nothing about the device
    )

    def init(mode: Any) -> wandb.Run:
        return wandb.init(
            project=order["project"],
            group=order["group"],
            name=order["name"] or f"{config.get('scheduler', '')} {directory.name}".strip(),
            id=order["id"],
            resume="allow" if order["id"] else None,
            tags=order["tags"],
            config=config,
            dir=directory,
            mode=mode,
            settings=settings,
        )

    mode = order["mode"]
    if mode == "auto":
        mode = os.environ.get("WANDB_MODE") or "online"
    try:
        return Opened(init(mode), "")
    except wandb.Error as error:
        if mode != "online":
            raise
        print(f"offline, as online it said: {error}", file=sys.stderr)
        wandb.teardown()  # else it holds the run's id
        return Opened(init("offline"), _one_line(error))


class Rounds:
    """The rows of rounds.csv(.part) as steps of the wandb run; its columns keep their names."""

    def __init__(self, run: wandb.Run, directory: Path) -> None:
        self._run, self._directory = run, directory
        self._file: IO[str] | None = None
        self._columns: list[tuple[int, str]] = []  # of numbers
        self._rest = ""  # of a line that is not complete yet
        self.num_recorded = 0
        self._first_step = run.starting_step  # not 0 where an earlier run is continued

    @property
    def step(self) -> int:
        """Of the next row. Rows are counted, as rounds of several replicas share their step_ids."""
        return self._first_step + self.num_recorded

    def record(self, at_most: int) -> int:
        """Record that many of the rows that have come since; returns how many there were."""
        before = self.num_recorded
        for cells in self._new_rows():
            row = {name: number(cells[i]) for i, name in self._columns if cells[i] != ""}
            self._run.log(row, step=self.step)
            self.num_recorded += 1
            if self.num_recorded - before == at_most:
                break
        return self.num_recorded - before

    def _new_rows(self) -> Iterator[list[str]]:
        file = self._open()
        if file is None:
            return
        while line := file.readline():
            self._rest += line
            if not line.endswith("\n"):
                continue
            (cells,) = csv.reader([self._rest])
            self._rest = ""
            if self._columns:
                yield cells
            else:
                self._columns = [(i, name) for i, name in enumerate(cells) if name not in ROUND_TEXTS]
                self._define_metrics()

    def _open(self) -> IO[str] | None:
        """The file keeps being the same when the run's end gives it its final name."""
        for name in ("rounds.csv.part", "rounds.csv"):
            if self._file is None:
                with contextlib.suppress(FileNotFoundError):
                    self._file = open(self._directory / name, encoding="utf-8", newline="")
        return self._file

    def _define_metrics(self) -> None:
        """Over the engine's time; their last values are no summary of a run, which has its own."""
        for _, name in self._columns:
            step = None if name == "end_time" else "end_time"
            self._run.define_metric(name, step_metric=step, summary="none")


def _where(opened: Opened) -> str:
    run = opened.run
    if run.disabled:
        return "wandb: disabled by WANDB_MODE"
    if run.offline:
        folder = Path(run.dir).parent
        if problem := _write_problem(folder):
            return warning(f"{problem}; what there is: {_command()} sync {folder}")
        why = f" ({opened.why_offline})" if opened.why_offline else ""
        return f"wandb: an offline run{why}; to upload it: {_command()} sync {folder}"
    return f"wandb: {run.url}"


def _command() -> str:
    """wandb's own, which lies beside Python where the environment is not activated."""
    return "wandb" if shutil.which("wandb") else str(Path(sys.executable).with_name("wandb"))


def _write_problem(folder: Path) -> str:
    """Why the run's file may lack something: wandb raises nothing where it cannot write, and says so in a log alone."""
    if shutil.disk_usage(folder).free < MIN_FREE_BYTES:
        return "the disk is full"
    with contextlib.suppress(FileNotFoundError), open(folder / "logs" / "debug-internal.log", encoding="utf-8") as log:
        for line in log:
            if '"ERROR"' in line and "failed to save record" in line:
                return json.loads(line)["msg"]
    return ""


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:MAX_ERROR] or type(error).__name__
