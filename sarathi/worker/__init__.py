"""Real execution: batches, the worker with its model, the sampler."""

import os

# How often a thread looks again before it sleeps: by default for so long that a machine which others use too is several
# times slower; this short it costs nothing (docs/log.md). GNU OpenMP reads it when torch is loaded, so whoever sets one
# of the two, or loads torch first, decides.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
