"""The words every workload is told in: one request to come, and the list of them.

Plain data; where lengths and arrival times come from is the business of the other modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from sarathi.errors import FieldError

MAX_ARRIVAL_TIME = 10**12  # seconds; from there on a clock in floats loses fractions of a millisecond


class RequestSpec(NamedTuple):
    """One request to be sent."""

    request_id: str
    arrival_time: float  # seconds after the start of the run
    num_prompt_tokens: int
    num_output_tokens: int  # what the engine is let generate; 0 is allowed
    prompt: str | None = None  # the text, where it is known and was asked for
    prompt_token_ids: Sequence[int] | None = None  # what a real model reads; None where lengths are enough
    tenant: str = ""  # its class: targets of latency may differ by it


@dataclass
class Workload:
    """Requests sorted by arrival time, and one line for each thing that was read, kept, changed or dropped.

    Raises FieldError of `num_requests` where the last arrives after MAX_ARRIVAL_TIME.
    """

    name: str
    requests: list[RequestSpec]
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert all(a.arrival_time <= b.arrival_time for a, b in pairwise(self.requests)), "arrivals must be sorted"
        last = self.requests[-1].arrival_time
        if not last <= MAX_ARRIVAL_TIME:
            allowed = f"at most {MAX_ARRIVAL_TIME:,} s (take fewer requests or shorter intervals)"
            text = f"request {len(self.requests):,} would arrive at {last:,.3g} s; {allowed}"
            raise FieldError("num_requests", text)
