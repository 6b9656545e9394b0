"""Compiled loops of a CPU in float32: arrays in, arrays out, each an njit function of its own. Need numba.

They know sizes and addresses, and neither layers nor batches. How many threads a call takes is told with it.
"""

import sarathi.kernels.threads as _  # noqa: F401  # decides on the threads' library before any loop runs
