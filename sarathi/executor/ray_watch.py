"""Whether the processes of Ray itself live that a team of workers depends on. Their death no worker tells of in time.

Without its GCS or raylet a worker goes on, until Ray ends it, and the driver with it.
"""

from __future__ import annotations

import atexit
import os

from sarathi.clock import host_time
from sarathi.executor.ray_cluster import Node
from sarathi.executor.ray_session import Session, knock

# A GCS that is away for so long is gone. Another's may be one that is started again, for which Ray waits a minute.
OWN_GCS_SECONDS, GCS_SECONDS = 1.5, 40.0


class RayWatch:
    """Looks whether somebody listens; each look costs a fraction of a millisecond.

    `raylets` are the nodes whose raylets are looked at.
    """

    def __init__(self, session: Session) -> None:
        self.raylets: set[Node] = set()
        self._session = session
        self._gcs_seconds = OWN_GCS_SECONDS if session.is_own else GCS_SECONDS
        self._gcs_time = host_time()  # when it last answered

    def what_died(self) -> str:
        """One line, empty where nothing did."""
        if self._session.gcs_answers():
            self._gcs_time = host_time()
        elif host_time() > self._gcs_time + self._gcs_seconds:
            atexit.register(_silence)
            return f"Ray's GCS at {self._session.gcs_address} died"
        for node in self.raylets:
            if _is_refused(node.raylet):
                return f"Ray's raylet on {node.address} died"
        return ""


def _is_refused(address: str) -> bool:
    """Whether nobody listens there; a host that is silent may be slow."""
    try:
        knock(address, 1.0)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def _silence() -> None:
    """Without a GCS Ray's core ends the process before it can exit, with lines of its own after ours."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
