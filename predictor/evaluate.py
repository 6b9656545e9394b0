"""`python -m predictor.evaluate MODEL.npz DATA`: a model's errors on the test rounds, beside those of baselines.

The baselines see the rounds, weights and features that the model saw. Knows no training settings and no torch.
"""

from __future__ import annotations

import argparse
import json
import logging
import shlex
import statistics
import sys
import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from predictor.baselines import BASELINES
from predictor.command_line import check_writable, exit_status
from predictor.dataset import Dataset, DatasetSettings, Split, prepare
from predictor.features import derive
from predictor.model import ModelInfo, Predictor
from predictor.plots import plot_predictions
from predictor.rounds_file import check_exists
from sarathi.core.plan import BatchPlan, MemoryStats
from sarathi.request import Request, SamplingParams

logger = logging.getLogger(__name__)

PERCENTILES = (50, 90, 95, 99)
BOUNDS_MS = (5, 10)
BUCKET_TOKENS = 64
NUM_CANDIDATES = 64  # chunk sizes of one timed prediction


def error_metrics(predicted: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """Errors of predicted against true times, seconds (n,) each, both above 0 in `true`.

    MAE, RMSE and MAPE are the paper's Eq. 15 to 17; p50 to max are of the absolute error; bias is predicted - true.
    """
    error = 1e3 * (np.asarray(predicted, dtype=np.float64) - true)
    size = np.abs(error)
    return {
        "mae_ms": float(size.mean()),
        "rmse_ms": float(np.sqrt(np.mean(error**2))),
        "mape_percent": float(100 * np.mean(size / (1e3 * true))),
        **{f"p{q}_ms": float(np.percentile(size, q)) for q in PERCENTILES},
        "max_ms": float(size.max()),
        **{f"within_{bound}ms_percent": float(100 * np.mean(size <= bound)) for bound in BOUNDS_MS},
        "bias_ms": float(error.mean()),
    }


def errors_by_bucket(predicted: np.ndarray, data: Dataset) -> dict[str, dict[str, float]]:
    """`error_metrics` of each bucket of scheduled tokens that has rounds: '1-64', '65-128', ..., with num_rounds."""
    buckets = (data.scheduled_tokens - 1) // BUCKET_TOKENS
    table = {}
    for bucket in np.unique(buckets):
        rows = buckets == bucket
        name = f"{bucket * BUCKET_TOKENS + 1}-{(bucket + 1) * BUCKET_TOKENS}"
        table[name] = {"num_rounds": int(rows.sum()), **error_metrics(predicted[rows], data.times[rows])}
    return table


def predict(predictor: Predictor, data: Dataset) -> np.ndarray:
    """Seconds (n,) for recorded rounds, without warnings of those outside the training range."""
    return predictor.regressor(derive(data.raw, predictor.extras))


def fit_baselines(split: Split, extras: Sequence[str] = ()) -> dict[str, Predictor]:
    """Every kind of baseline, fitted to `split.train` and with its test errors; without the trees if sklearn lacks."""
    features = derive(split.train.raw, extras)
    training_range = (split.train.raw.min(axis=0), split.train.raw.max(axis=0))
    predictors = {}
    for kind, fit in BASELINES.items():
        try:
            regressor = fit(features, split.train.times, split.train_weights)
        except ValueError as error:
            logger.warning("%s: left out (%s)", kind, error)
            continue
        predictor = Predictor(regressor, ModelInfo(split.train.source, len(split.train)), training_range, extras)
        errors = error_metrics(predict(predictor, split.test), split.test.times)
        predictor.info = replace(predictor.info, test_errors=errors)
        predictors[kind] = predictor
    return predictors


def time_predictions(
    predictors: Mapping[str, Predictor], num_repeats: int = 15, num_calls: int = 20
) -> dict[str, float]:
    """Microseconds of one `predict` of NUM_CANDIDATES chunks, as the scheduler calls it.

    The predictors take turns and the median counts, since a shared machine's speed swings.
    """
    taken: dict[str, list[float]] = {name: [] for name in predictors}
    calls = {name: _typical_call(predictor.without_warnings()) for name, predictor in predictors.items()}
    for _ in range(num_repeats):
        for name, call in calls.items():
            taken[name].append(1e6 * timeit.timeit(call, number=num_calls) / num_calls)
    return {name: statistics.median(values) for name, values in taken.items()}


def _typical_call(predictor: Predictor) -> Callable[[], np.ndarray]:
    """The prediction of a prompt's candidates beside decodes, within the training range."""
    most_prefill, most_decodes, most_total = (int(predictor.high[column]) for column in (0, 1, 3))
    request = Request("candidate", range(max(1, most_prefill)), SamplingParams(), 0.0)
    decodes = [request] * min(64, most_decodes)
    plan = BatchPlan(most_prefill + len(decodes), 0.0)
    context = min(most_total // len(decodes), int(predictor.high[4])) if decodes else 0
    plan.add_decodes(decodes, len(decodes) * context, context)
    chunks = np.linspace(1, max(1, most_prefill), NUM_CANDIDATES).astype(np.int64)
    return lambda: predictor.predict(request, chunks, plan, MemoryStats())


def evaluate(
    models: Mapping[str, Predictor], predictions: Mapping[str, np.ndarray], test: Dataset
) -> dict[str, dict[str, Any]]:
    """All figures of the models on the test rounds as JSON values: `models` by name (errors, us_per_prediction) and
    `buckets` by name. predictions: seconds (n,) by name."""
    times = time_predictions(models)
    return {
        "models": {
            name: {**error_metrics(predicted, test.times), "us_per_prediction": times[name]}
            for name, predicted in predictions.items()
        },
        "buckets": {name: errors_by_bucket(predicted, test) for name, predicted in predictions.items()},
    }


def named_models(predictor: Predictor, baselines: Mapping[str, Predictor]) -> dict[str, Predictor]:
    """The model in question first, called by its kind, or `<kind> (file)` where a baseline is of that kind too."""
    name = f"{predictor.kind} (file)" if predictor.kind in baselines else predictor.kind
    return {name: predictor, **baselines}


def comparison_table(models: Mapping[str, Mapping[str, float]]) -> str:
    columns = {
        "MAE ms": ("mae_ms", ".3f"),
        "RMSE ms": ("rmse_ms", ".3f"),
        "MAPE %": ("mape_percent", ".2f"),
        "P50 ms": ("p50_ms", ".2f"),
        "P90 ms": ("p90_ms", ".2f"),
        "P95 ms": ("p95_ms", ".2f"),
        "P99 ms": ("p99_ms", ".2f"),
        "max ms": ("max_ms", ".2f"),
        "<=5 ms %": ("within_5ms_percent", ".2f"),
        "<=10 ms %": ("within_10ms_percent", ".2f"),
        f"us/{NUM_CANDIDATES}": ("us_per_prediction", ",.0f"),
    }
    rows = [[name, *(format(errors[key], spec) for key, spec in columns.values())] for name, errors in models.items()]
    return _table(["model", *columns], rows)


def bucket_table(buckets: Mapping[str, Mapping[str, float]]) -> str:
    header = ["scheduled tokens", "rounds", "MAE ms", "MAPE %", "bias ms", "P99 ms", "max ms", "<=5 ms %"]
    keys = ("mae_ms", "mape_percent", "bias_ms", "p99_ms", "max_ms", "within_5ms_percent")
    rows = [
        [name, f"{errors['num_rounds']:,}", *(f"{errors[key]:.2f}" for key in keys)] for name, errors in buckets.items()
    ]
    return _table(header, rows)


def verdict(models: Mapping[str, Mapping[str, float]]) -> str:
    """Which model has the least MAE, what the runner-up gives, and what both cost; which has the least MAPE."""

    def told(name: str) -> str:
        errors = models[name]
        return f"{name} {errors['mae_ms']:.3f} ms ({errors['us_per_prediction']:,.0f} us a prediction)"

    best, *others = sorted(models, key=lambda name: models[name]["mae_ms"])
    text = f"Least MAE: {told(best)}"
    if others:
        text += f", then {told(others[0])}"
        if least := models[best]["mae_ms"]:
            text += f", {100 * (models[others[0]]['mae_ms'] / least - 1):.0f} % more"
    by_mape = min(models, key=lambda name: models[name]["mape_percent"])
    return f"{text}. Least MAPE: {by_mape}, {models[by_mape]['mape_percent']:.2f} %."


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned text, the first column to the left."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in (header, *rows)
    )


def report(
    predictor: Predictor,
    split: Split,
    command: str,
    plot: Path,
    json_file: Path | None = None,
    baselines_dir: Path | None = None,
) -> None:
    """Fit the baselines, print the tables and the verdict, draw the plot, write what was asked for.

    `command` is what the baselines' files are told to come from.
    """
    baselines = fit_baselines(split, predictor.extras)
    models = named_models(predictor, baselines)
    predictions = {label: predict(model, split.test) for label, model in models.items()}
    figures = {
        "source": asdict(split.test.source),
        "extras": [*predictor.extras],
        "counts": dict(split.counts),
        "num_candidates": NUM_CANDIDATES,
        **evaluate(models, predictions, split.test),
    }
    name = next(iter(models))
    print(f"\n{split.test.source}; {len(split.test):,} test rounds, {len(split.train):,} for training")
    print(comparison_table(figures["models"]))
    print(verdict(figures["models"]))
    print(f"\n{name} by scheduled tokens\n{bucket_table(figures['buckets'][name])}")
    plot_predictions(predictions, split.test.times, name, plot, str(split.test.source))
    print(f"plot: {plot}")
    if baselines_dir is not None:
        for kind, baseline in baselines.items():
            baseline.info = replace(baseline.info, command=command, settings={"data": split.settings})
            baseline.save(baselines_dir / f"{kind}.npz")
        print(f"baselines: {', '.join(f'{kind}.npz' for kind in baselines)} in {baselines_dir}")
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        print(f"figures: {json_file}")


def add_report_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument(
        "--save-baselines", type=Path, metavar="DIR", help="write each baseline as a predictor file, KIND.npz"
    )


def check_report_outputs(arguments: argparse.Namespace) -> None:
    """Raises ValueError naming the flag of add_report_flags whose output could not be written."""
    if arguments.json is not None:
        check_writable("--json", arguments.json)
    if arguments.save_baselines is not None:
        for kind in BASELINES:
            check_writable("--save-baselines", arguments.save_baselines / f"{kind}.npz")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m predictor.evaluate", description=__doc__)
    parser.add_argument("model", type=Path, metavar="MODEL.npz", help="a predictor file of any kind")
    parser.add_argument("data", type=Path, metavar="DATA", help="the rounds it was trained on, .parquet or .csv")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="default: MODEL_evaluation.png beside DATA")
    add_report_flags(parser)
    argv = sys.argv[1:] if argv is None else list(argv)
    arguments = parser.parse_args(argv)
    command = "python -m predictor.evaluate " + shlex.join(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    return exit_status(lambda: _run(arguments, command))


def _run(arguments: argparse.Namespace, command: str) -> None:
    predictor = Predictor.load(arguments.model)
    check_exists(arguments.data)
    plot = arguments.plot or arguments.data.with_name(f"{arguments.model.stem}_evaluation.png")
    check_writable("--plot", plot)
    check_report_outputs(arguments)
    split = prepare(arguments.data, _data_settings(predictor))
    _check_source(predictor, split)
    _warn_of_other_rounds(predictor, split)
    report(predictor, split, command, plot, arguments.json, arguments.save_baselines)


def _check_source(predictor: Predictor, split: Split) -> None:
    """Raises ValueError where the rounds are not of what the model was trained for; another jitter will do."""
    trained, measured = (replace(source, jitter=0.0) for source in (predictor.info.source, split.test.source))
    if differences := trained.differences(measured):
        raise ValueError(f"the model was trained for something else than DATA holds: {'; '.join(differences)}")


def _warn_of_other_rounds(predictor: Predictor, split: Split) -> None:
    """Another file is split otherwise: rounds that the model has seen may be among its test rounds."""
    trained = (predictor.info.settings.get("data") or {}).get("read")  # older files lack it
    if trained is not None and trained != split.settings["read"]:
        logger.warning(
            "DATA is not the file that the model was trained on; its test rounds may hold rounds of training"
        )


def _data_settings(predictor: Predictor) -> DatasetSettings:
    """Those of its training, so that its test rounds come out again; the defaults where its file tells none."""
    settings = predictor.info.settings.get("data")
    if settings is None:
        logger.warning("the model does not tell how its data were split: taking the defaults")
        return DatasetSettings()
    try:
        values = {name: value for name, value in settings.items() if name != "read"}
        return DatasetSettings(**{**values, "weight_range": tuple(values["weight_range"])})
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"the model's data settings are of another version ({error}); train it again") from None


if __name__ == "__main__":
    raise SystemExit(main())
