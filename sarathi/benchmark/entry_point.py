"""How the benchmark's commands end: exit status, and one line on stderr for whatever is not a fault of ours."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable

from sarathi.errors import FlagError

# Exit statuses: argparse's, and those of a process that SIGINT or SIGPIPE ended.
BAD_SETTING, INTERRUPTED, BROKEN_PIPE = 2, 130, 141

logger = logging.getLogger(__name__)


def exit_status(command: Callable[[], None]) -> int:
    """Run `command`. A crash passes through, with the traceback that its repair needs."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        try:
            command()
        finally:
            print(end="", flush=True)  # a reader that went away shows here, not when the interpreter ends
    except FlagError as error:
        logger.debug("where the error arose", exc_info=True)
        print(f"error: {error}", file=sys.stderr)
        return BAD_SETTING
    except KeyboardInterrupt as interrupt:
        print("; ".join(["interrupted", *getattr(interrupt, "__notes__", ())]), file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return 0
