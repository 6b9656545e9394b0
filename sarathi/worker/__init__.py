"""Real execution: batches, the worker with its model, the sampler."""

import os

# Threads that spin while they wait make a machine that others use too several times slower, and gain next to nothing
# on an idle one (docs/log.md). OpenMP reads this when torch is loaded; whoever sets it, or loads torch first, decides.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
