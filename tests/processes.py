"""Processes that tests start and stop."""

from __future__ import annotations

import signal


def heed_ctrl_c() -> None:
    """For `preexec_fn`: a shell starts what runs in its background with Ctrl-C ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
