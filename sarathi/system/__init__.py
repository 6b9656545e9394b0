"""From settings to what serves: a scheduler on a device, real or simulated.

Knows configs and constructors, and no workload. Raises FlagError, one line naming the flag.
"""

from sarathi.system.build import System, build_system
from sarathi.system.local import load_shared_parts
from sarathi.system.scheduler import scheduler_name

__all__ = ["System", "build_system", "load_shared_parts", "scheduler_name"]
