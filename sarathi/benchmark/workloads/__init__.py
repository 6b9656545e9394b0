"""What is replayed: each module turns a data set, a trace or a generator into a `Workload`.

Nothing here knows of engines, schedulers or configuration classes; functions take plain arguments.
"""

from sarathi.benchmark.workloads.intervals import gamma_arrivals, poisson_arrivals, static_arrivals
from sarathi.benchmark.workloads.lengths import (
    Lengths,
    fixed_lengths,
    synthetic_workload,
    trace_lengths,
    uniform_lengths,
    zipf_lengths,
)
from sarathi.benchmark.workloads.sharegpt import sharegpt_workload
from sarathi.benchmark.workloads.spec import RequestSpec, Workload
from sarathi.benchmark.workloads.trace import Shaping, trace_arrivals, trace_workload

__all__ = [
    "Lengths",
    "RequestSpec",
    "Shaping",
    "Workload",
    "fixed_lengths",
    "gamma_arrivals",
    "poisson_arrivals",
    "sharegpt_workload",
    "static_arrivals",
    "synthetic_workload",
    "trace_arrivals",
    "trace_lengths",
    "trace_workload",
    "uniform_lengths",
    "zipf_lengths",
]
