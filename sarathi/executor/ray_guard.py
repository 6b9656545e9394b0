"""Ends what Ray started for a process that was killed: agents of Ray itself would outlive it by more than a minute.

A script of its own, started beside Ray. Its standard input ends when the process that started it does, however it does.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

GRACE_SECONDS = 2.0  # in which they may end by themselves
PROCESSES = Path("/proc")


def start_guard() -> None:
    """Whatever Ray will have started for this process ends with it. On Linux alone."""
    if not (PROCESSES / "self/fd").is_dir():
        return
    # In a session of its own Ctrl-C does not reach it; and nobody waits for it, since it ends after this process.
    subprocess.Popen(
        [sys.executable, "-S", __file__, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def main(driver: str) -> None:
    sys.stdin.buffer.read()
    select.select([], [], [], GRACE_SECONDS)
    for process in PROCESSES.iterdir():
        if process.name.isdigit() and _is_left(process, driver):
            with suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)


def _is_left(process: Path, driver: str) -> bool:
    """Whether Ray started this for the driver: Ray names a session's folder by it, and each process has a log there."""
    log = re.compile(rf"/session_[^/]*_{driver}/logs/")
    try:
        if not (process / "comm").read_text().startswith("ray::"):
            return False
        files = list((process / "fd").iterdir())
    except OSError:  # it has ended, or is another user's
        return False
    for file in files:
        with suppress(OSError):
            if log.search(os.readlink(file)):
                return True
    return False


if __name__ == "__main__":
    main(sys.argv[1])
