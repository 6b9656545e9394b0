"""The command line that every table has. Knows nothing of what a table runs."""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sarathi.errors import InputError

logger = logging.getLogger(__name__)

SEEDS = (1, 2, 3, 4, 5)
MAX_SEED, MAX_PROCESSES = 2**32 - 1, 256
BACKENDS = ("sim", "cpu", "cuda")


@dataclass(frozen=True)
class Options:
    """Where a table runs and where its files go."""

    backend: str = "sim"
    results: Path = Path("results")
    seeds: tuple[int, ...] = SEEDS
    quick: bool = False  # a reduced size, to see that everything works; its figures mean nothing
    processes: int = 1
    wandb_project: str | None = None
    keep_runs: bool = False  # the folder of every run stays under results

    @property
    def directory(self) -> Path:
        """Where the files of this backend lie."""
        return self.results / (f"{self.backend}-quick" if self.quick else self.backend)

    def for_search(self) -> Options:
        """With one seed, and no copy of the runs: for runs that only choose what the table then runs."""
        return replace(self, seeds=self.seeds[:1], wandb_project=None, keep_runs=False)

    def predictor(self, device: str, profile: str) -> Path:
        """The latency predictor for the device that this backend runs on: the simulated one, or the real one here.

        Raises InputError, a line with make's target, if it is missing.
        """
        path = self.profiled(device, profile).with_suffix(".npz")
        if self.backend != "sim":
            path = path.with_stem(self.backend)
        if not path.is_file():
            target = path.relative_to(self.results)
            raise InputError(f"{path}: no such latency predictor; `make results/{target}` makes one in results")
        return path

    def profiled(self, device: str, profile: str) -> Path:
        """Where make leaves the rounds that such a predictor is trained on, there or not."""
        if self.backend != "sim":
            return self.results / "real" / {"cpu": "rounds.csv", "cuda": "cuda.csv"}[self.backend]
        return self.results / "predictor" / (f"{device}.csv" if profile == "lean" else f"{device}--{profile}.csv")


def _whole(least: int, most: int) -> Callable[[str], int]:
    """A whole number in a range, as a type of argparse."""

    def number(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is not allowed; {least} to {most:,}")
        return int(text)

    return number


def options_parser(description: str | None) -> argparse.ArgumentParser:
    """The flags of every table; one that has flags of its own adds them."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    backend_help = (
        "sim: the paper's devices, simulated; cpu: SmolLM2 on this CPU; cuda: the paper's model on a CUDA device "
        "(default: %(default)s)"
    )
    parser.add_argument("--backend", choices=BACKENDS, default="sim", help=backend_help)
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder (default: %(default)s)")
    parser.add_argument(
        "--seeds", type=_whole(0, MAX_SEED), nargs="+", default=None, help="default: 1 to 5 with sim, else 1"
    )
    parser.add_argument("--quick", action="store_true", help="a reduced size, to see that everything works")
    parser.add_argument(
        "--processes", type=_whole(1, MAX_PROCESSES), default=None, help="of simulations (default: one a core)"
    )
    wandb_help = "also record every run there, a group for each table, and keep its folder"
    parser.add_argument("--wandb-project", default=None, help=wandb_help)
    parser.add_argument("--keep-runs", action="store_true", help="keep every run's folder")
    return parser


def options_from(args: argparse.Namespace, *, logs_runs: bool = True) -> Options:
    """Options from what `options_parser` parsed; `logs_runs`: whether there are runs that wandb can record."""
    if args.wandb_project and not logs_runs:
        logger.warning("--wandb-project: no effect here, where no request is served")
    simulated = args.backend == "sim"
    if args.seeds is not None and len({*args.seeds}) < len(args.seeds):
        raise InputError("--seeds: a seed stands twice, which is no second run")
    default_seeds = SEEDS[: 2 if args.quick else None] if simulated else SEEDS[:1]
    options = Options(
        backend=args.backend,
        results=args.results,
        seeds=tuple(args.seeds or default_seeds),
        quick=args.quick,
        processes=(args.processes or os.cpu_count() or 1) if simulated else 1,
        wandb_project=(args.wandb_project or None) if logs_runs else None,
        keep_runs=args.keep_runs,
    )
    try:  # before hours of runs, not after them
        options.directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=options.directory):
            pass
    except OSError as error:
        raise InputError(f"--results: cannot write to {options.directory} ({error.strerror})") from None
    return options


def parse_options(description: str | None, argv: Sequence[str] | None, *, logs_runs: bool = True) -> Options:
    """The options of a table without flags of its own."""
    return options_from(options_parser(description).parse_args(argv), logs_runs=logs_runs)
