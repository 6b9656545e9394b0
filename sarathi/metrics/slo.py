"""How a request ended, and whether it kept its targets; counted by class (tenant). Knows no file and no setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

from sarathi.request import Request, RequestStatus

_STATUS = {
    RequestStatus.FINISHED_STOPPED: "finished",
    RequestStatus.FINISHED_LENGTH: "finished",
    RequestStatus.FINISHED_ABORTED: "aborted",
    RequestStatus.FINISHED_IGNORED: "ignored",
}


def status_word(request: Request) -> str:
    """'finished', 'aborted', 'ignored', or 'unfinished' for a request that still waits or runs."""
    return _STATUS.get(request.status, "unfinished")


class SloVerdict(NamedTuple):
    """Whether a request kept each target; None where it has none."""

    ttft: bool | None
    tpot: bool | None

    @property
    def met(self) -> bool | None:
        """All of its targets; None where it has none."""
        return None if self.ttft is None and self.tpot is None else self.ttft is not False and self.tpot is not False


def slo_verdict(request: Request) -> SloVerdict:
    """A request that did not finish keeps no target; one of a single output token has no TPOT that could be late."""
    ttft_slo, tpot_slo = request.slo
    if status_word(request) != "finished":
        return SloVerdict(None if ttft_slo is None else False, None if tpot_slo is None else False)
    assert request.prefill_end_time is not None and request.finish_time is not None, request
    num_gaps = len(request.output_token_ids) - 1
    decode = request.finish_time - request.prefill_end_time
    return SloVerdict(
        None if ttft_slo is None else request.prefill_end_time - request.arrival_time <= ttft_slo,
        None if tpot_slo is None else num_gaps < 1 or decode / num_gaps <= tpot_slo,
    )


@dataclass
class SloCounts:
    """How many requests of a class (tenant) had targets, and how many kept them."""

    with_target: int = 0
    met: int = 0
    with_ttft: int = 0
    ttft_met: int = 0
    with_tpot: int = 0
    tpot_met: int = 0

    def add(self, verdict: SloVerdict) -> None:
        self.with_target += verdict.met is not None
        self.met += verdict.met is True
        self.with_ttft += verdict.ttft is not None
        self.ttft_met += verdict.ttft is True
        self.with_tpot += verdict.tpot is not None
        self.tpot_met += verdict.tpot is True

    def __add__(self, other: SloCounts) -> SloCounts:
        return SloCounts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def describe_slo(by_class: Mapping[str, SloCounts], makespan: float | None) -> dict[str, Any]:
    """How many requests with a target kept it, of all that arrived, and as a rate over the run: goodput.

    Goodput counts requests that finish within all of their targets (Zhong et al., 'DistServe', OSDI 2024).
    """
    total = sum(by_class.values(), SloCounts())
    result = _slo_of(total, makespan)
    result["classes"] = {name: _slo_of(counts, makespan) for name, counts in sorted(by_class.items()) if name}
    return result


def _slo_of(counts: SloCounts, makespan: float | None) -> dict[str, Any]:
    def share(part: int, whole: int) -> float | None:
        return part / whole if whole else None

    return {
        "num_with_target": counts.with_target,
        "num_met": counts.met if counts.with_target else None,
        "share_met": share(counts.met, counts.with_target),
        "goodput_requests_per_s": counts.met / makespan if counts.with_target and makespan else None,
        "share_ttft_met": share(counts.ttft_met, counts.with_ttft),
        "share_tpot_met": share(counts.tpot_met, counts.with_tpot),
    }
