"""What tells of a worker's end: the error that Ray gives in place of an answer, and the worker's log."""

from __future__ import annotations

from pathlib import Path

from sarathi.errors import one_line


def is_of_a_peer(error: BaseException) -> bool:
    """Whether a worker failed only because another did."""
    from sarathi.worker.parallel import PeerError

    return isinstance(getattr(error, "cause", error), PeerError)


def log_lines(log: str) -> list[str]:
    """What a worker said in its log, if that is one of this machine."""
    path = Path(log)
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    return [line for line in text.splitlines() if line.strip() and not line.startswith(":")]  # Ray's marks


def exit_detail(error: BaseException) -> str:
    """What Ray knows of the end of a process, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line.partition("Worker exit detail:")[2].strip() for line in lines if "Worker exit detail:" in line]
    detail = said[0].partition(" Some common causes")[0] if said else lines[0] if lines else type(error).__name__
    return one_line(detail)
