"""A scheduling policy of one's own: prompts up to a length get a head start of some seconds.

    python -m sarathi.benchmark.main --scheduler_config_type examples.two_lanes.TwoLanesScheduler \
        --custom_scheduler_config_params '{"max_short_tokens": 64, "head_start": 5.0}'
"""

from __future__ import annotations

from sarathi.core.order import OrderPolicy
from sarathi.core.scheduler import BaseScheduler
from sarathi.request import Request


class TwoLanes(OrderPolicy):
    def __init__(self, max_short_tokens: int = 64, head_start: float = 5.0) -> None:
        self.max_short_tokens = max_short_tokens
        self.head_start = head_start

    def key(self, request: Request, now: float) -> float:
        """The smallest key goes first: the arrival time, which short prompts move to the past."""
        is_short = request.num_prompt_tokens <= self.max_short_tokens
        return request.arrival_time - (self.head_start if is_short else 0.0)


class TwoLanesScheduler(BaseScheduler):
    def make_order(self) -> OrderPolicy:
        return TwoLanes(**self.config.params)
