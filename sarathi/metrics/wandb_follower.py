"""A run's copy in Weights & Biases, as the run itself sees it: a process of lowest priority follows the run's files.

The run only starts that process and waits for it when all is written; it imports nothing of wandb, and whatever goes
wrong over there is one line at the end. What the process does stands in wandb_process.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sarathi.config import Config, EndpointConfig, chosen_type, flag_prefix
from sarathi.config.metrics import tag_names

logger = logging.getLogger(__name__)
LOG = "wandb.log"
INCOMPLETE = "wandb: WARNING: the run was not recorded in full"  # how such a run's line begins
SILENCE_LIMIT = 60.0  # seconds without a sign of progress after which the run no longer waits
END_LIMIT = 15.0  # seconds that a process which has said its last, or was told to end, may take to end
# Of lowest priority before it imports anything, which would cost a short run's time.
_PROGRAM = "import os, sys; os.nice(19); from sarathi.metrics.wandb_process import main; sys.exit(main())"
_PACKAGE_ROOT = str(Path(__file__).parents[2])


class WandbFollower:
    """Records the run that writes into `directory` in the project that `config` names. No method raises but on Ctrl-C.

    Args:
        directory: the run's folder, which exists; wandb's own files go into it, and wandb.log.
        metadata: what heads the run's summary (scheduler, device, simulated, seed, ...).
    """

    def __init__(self, directory: Path, config: EndpointConfig, metadata: Mapping[str, object]) -> None:
        self._log = directory / LOG
        self._process: subprocess.Popen[bytes] | None = None
        self._line = ""
        path = os.pathsep.join([_PACKAGE_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])
        try:
            with open(self._log, "wb") as log:
                # A process group of its own: Ctrl-C reaches the run alone, which then says what becomes of this. Not
                # a session of its own, between which Linux shares the CPUs evenly, whatever the priority.
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM, str(directory.absolute())],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env={**os.environ, "PYTHONPATH": path},
                    bufsize=0,
                    process_group=0,
                )
        except OSError as error:
            self._line = warning(f"no process for it could be started ({error.strerror or error})")
            return
        self._tell(json.dumps(_order(config, metadata), default=str))

    def finish(self, *, complete: bool) -> str:
        """Wait until everything is recorded; the line that says where, or what went wrong.

        Args:
            complete: the run's tables, summary, plots and report are all written. If not, the run is recorded as
                failed, with what there is.
        """
        if self._process is not None and not self._line:
            # The run is over, so nothing is slowed any more; an ordinary user may not raise a priority.
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PGRP, self._process.pid, os.getpriority(os.PRIO_PROCESS, 0))
            logger.info("waiting for wandb's copy of the run; Ctrl-C drops it")
            try:
                self._tell("complete" if complete else "failed")
                self._line = self._last_line(self._process)
            except BaseException as error:
                self.kill()
                error.add_note(warning("it was not waited for"))
                raise
        return self._line

    def kill(self) -> None:
        """End the process at once. What it has not recorded is lost to wandb, not to the run's files."""
        if self._process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_LIMIT)
                return

    def _tell(self, line: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended; finish() says why
            self._process.stdin.write(line.encode() + b"\n")

    def _last_line(self, process: subprocess.Popen[bytes]) -> str:
        """What the process says at its end; JSON lines before it are signs of progress."""
        assert process.stdout is not None
        heard = b""
        while select.select([process.stdout], [], [], SILENCE_LIMIT)[0]:
            piece = os.read(process.stdout.fileno(), 1 << 16)
            heard += piece
            *lines, heard = heard.split(b"\n")
            said = next((said for said in map(json.loads, lines) if "line" in said), None)
            if said is not None or not piece:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(END_LIMIT)
                return warning(self._why_it_ended(process)) if said is None else said["line"]
        return warning(f"not done yet; process {process.pid} goes on by itself, see {self._log}")

    def _why_it_ended(self, process: subprocess.Popen[bytes]) -> str:
        status = process.returncode
        how = f"signal {-status}" if status is not None and status < 0 else f"status {status}"
        try:
            written = self._log.read_bytes()[-2000:].decode(errors="replace").split("\n")
        except OSError:
            written = []
        last = next((line.strip() for line in reversed(written) if line.strip()), "")
        return f"its process ended with {how}" + (f": {last}" if last else "") + f"; see {self._log}"


def warning(text: str) -> str:
    """The one line of a run that wandb has not, or not all of."""
    return f"{INCOMPLETE}: {text}"


def _order(config: EndpointConfig, metadata: Mapping[str, object]) -> dict[str, Any]:
    """What the process needs to know that the run's files do not say."""
    metrics = config.metrics_config
    return {
        "project": metrics.wandb_project,
        "group": metrics.wandb_group,
        "name": metrics.wandb_run_name,
        "id": metrics.wandb_run_id,
        "sweep_id": metrics.wandb_sweep_id,
        "tags": tag_names(metrics.wandb_tags),
        "mode": metrics.wandb_mode,
        "config": {**flat_settings(config), **metadata},
        "argv": sys.argv,
    }


def flat_settings(config: Config, prefix: str = "") -> dict[str, Any]:
    """Every setting by the name of its flag, the types of chosen components too."""
    flat: dict[str, Any] = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if not isinstance(value, Config):
            flat[f"{prefix}{f.name}"] = value
            continue
        if "choice" in f.metadata:
            flat[f"{prefix}{f.name}_type"] = chosen_type(config, f.name)
        flat |= flat_settings(value, f"{flag_prefix(config, f.name)}_")
    return flat
