"""`python -m predictor.train DATA --output FILE.npz`: trains the MLP and writes it with its errors and loss curves.

Owns the loss and the loop. Knows neither how rounds are collected nor how a model is used. torch is needed here and
nowhere else in the package.
"""

from __future__ import annotations

import argparse
import csv
import logging
import math
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from predictor.command_line import check_writable, exit_status, settings_named_by_flags
from predictor.dataset import DatasetSettings, Split, prepare, sample_weights
from predictor.evaluate import add_report_flags, check_report_outputs, error_metrics, predict, report
from predictor.features import derive
from predictor.model import Mlp, ModelInfo, Predictor
from predictor.plots import plot_loss
from predictor.rounds_file import check_exists
from predictor.train_config import TrainConfig, add_config_flags, config_from_flags

if TYPE_CHECKING:
    import torch  # pyright: ignore[reportMissingImports]

logger = logging.getLogger(__name__)


class Epoch(NamedTuple):
    """Losses are Eq. 5 in squared standard deviations of the round time; training's is met under dropout."""

    epoch: int
    lr: float
    train_loss: float
    validation_loss: float
    validation_mae_ms: float


def train(
    split: Split,
    config: TrainConfig,
    weight_range: tuple[float, float] = (1.0, 10.0),
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> tuple[Predictor, list[Epoch]]:
    """Fit the MLP on `split.train`; the weights of the epoch with the least validation MAE are kept.

    `weight_range` clips the bucket weights of the validation loss, as the training weights were. With the same data,
    config, torch and processor the result is the same to the last bit. Raises ValueError where torch is missing.
    """
    torch = _import_torch()
    features = derive(split.train.raw, config.extras)
    mean, scale = features.mean(axis=0), features.std(axis=0)
    constant = scale <= 1e-9 * np.maximum(1.0, np.abs(mean))
    scale[constant] = 1.0
    mean[constant & (features[0] == 1.0)] = 0.0  # the paper's bias stays 1
    time_mean, time_scale = float(split.train.times.mean()), float(split.train.times.std()) or 1.0

    def tensors(raw: np.ndarray, times: np.ndarray, weights: np.ndarray) -> tuple[torch.Tensor, ...]:
        arrays = ((derive(raw, config.extras) - mean) / scale, (times - time_mean) / time_scale, weights)
        return tuple(torch.tensor(array, dtype=torch.float32) for array in arrays)

    validation_weights = sample_weights(split.validation.buckets, *weight_range)
    with _reproducible(torch, config):
        net = _network(torch, features.shape[1], config)
        history = _fit(
            torch,
            net,
            tensors(split.train.raw, split.train.times, split.train_weights),
            tensors(split.validation.raw, split.validation.times, validation_weights),
            1e3 * time_scale,
            config,
            on_epoch,
        )
    linear = [layer for layer in net if isinstance(layer, torch.nn.Linear)]
    mlp = Mlp(
        [(layer.weight.detach().numpy().T, layer.bias.detach().numpy()) for layer in linear],
        input_mean=mean,
        input_scale=scale,
        target_mean=time_mean,
        target_scale=time_scale,
    )
    training_range = (split.train.raw.min(axis=0), split.train.raw.max(axis=0))
    info = ModelInfo(split.train.source, num_rounds=len(split.train))
    return Predictor(mlp, info, training_range, config.extras), history


def loss(prediction: torch.Tensor, target: torch.Tensor, weights: torch.Tensor, config: TrainConfig) -> torch.Tensor:
    """Eq. 5: the weighted mean (all sizes (n,)) of Huber losses, `under_weight` times as much for underestimates."""
    error = prediction - target
    size = error.abs()
    delta = config.huber_delta
    huber = (0.5 * error * error).where(size <= delta, delta * (size - 0.5 * delta))
    return (weights * huber.where(error >= 0, config.under_weight * huber)).mean()


def _import_torch() -> Any:
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError("training needs torch: pip install 'sarathi-serve-fair[predictor]'") from None
    return torch


@contextmanager
def _reproducible(torch: Any, config: TrainConfig) -> Iterator[None]:
    """torch seeded, with fixed threads; both are as before afterwards."""
    num_threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(config.num_threads)
    torch.manual_seed(config.seed)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
        torch.set_rng_state(state)


def _network(torch: Any, num_inputs: int, config: TrainConfig) -> Any:
    layers: list[Any] = []
    for size in config.hidden_sizes:
        layers += [torch.nn.Linear(num_inputs, size), torch.nn.ReLU(), torch.nn.Dropout(config.dropout)]
        num_inputs = size
    return torch.nn.Sequential(*layers, torch.nn.Linear(num_inputs, 1))


def _fit(
    torch: Any,
    net: Any,
    training: tuple[torch.Tensor, ...],
    validation: tuple[torch.Tensor, ...],
    ms_per_unit: float,
    config: TrainConfig,
    on_epoch: Callable[[Epoch], None],
) -> list[Epoch]:
    """Train `net` in place on (features, times, weights), and leave it with the best epoch's weights."""
    features, times, weights = training
    held_features, held_times, held_weights = validation
    optimizer = torch.optim.AdamW(net.parameters(), lr=config.lr, weight_decay=config.weight_decay, fused=True)
    history: list[Epoch] = []
    best_mae, best_weights = float("inf"), None
    for number in range(config.epochs):
        lr = config.lr
        if config.lr_schedule == "cosine":
            lr *= 0.5 * (1 + math.cos(math.pi * number / config.epochs))
        for group in optimizer.param_groups:
            group["lr"] = lr
        net.train()
        total = torch.zeros(())
        for rows in torch.randperm(len(times)).split(config.batch_size):
            batch_loss = loss(net(features[rows]).squeeze(1), times[rows], weights[rows], config)
            optimizer.zero_grad()
            batch_loss.backward()
            optimizer.step()
            total += batch_loss.detach() * len(rows)
        net.eval()
        with torch.no_grad():
            prediction = net(held_features).squeeze(1)
            validation_loss = float(loss(prediction, held_times, held_weights, config))
            mae = ms_per_unit * float((prediction - held_times).abs().mean())
        if not mae < float("inf"):
            raise ValueError(
                f"lr: {config.lr:g} is not allowed with this data; the loss diverged in epoch {number + 1}"
            )
        if mae < best_mae:
            best_mae, best_weights = mae, {name: value.clone() for name, value in net.state_dict().items()}
        history.append(Epoch(number + 1, lr, float(total) / len(times), validation_loss, mae))
        on_epoch(history[-1])
    net.load_state_dict(best_weights)
    return history


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else list(argv)
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    return exit_status(lambda: _run(arguments, "python -m predictor.train " + shlex.join(argv)))


def _run(arguments: argparse.Namespace, command: str) -> None:
    with settings_named_by_flags():
        config = config_from_flags(arguments)
    with settings_named_by_flags(seed="split-seed"):
        data_settings = DatasetSettings(num_rounds=arguments.num_rounds or None, seed=arguments.split_seed)
    output: Path = arguments.output
    if output.suffix != ".npz":
        raise ValueError(f"--output: {output} is not allowed; a name that ends in .npz")
    check_exists(arguments.data)
    _import_torch()
    curves = output.with_name(f"{output.stem}_loss.csv")
    plot = output.with_name(f"{output.stem}_evaluation.png")
    for path in (output, curves, curves.with_suffix(".png"), plot):
        check_writable("--output", path)
    check_report_outputs(arguments)
    split = prepare(arguments.data, data_settings)
    logger.info("%s: %s", arguments.data, ", ".join(f"{name} {count:,}" for name, count in split.counts.items()))
    with settings_named_by_flags(), _progress(config.epochs) as on_epoch:
        predictor, history = train(split, config, data_settings.weight_range, on_epoch)
    predictor.info = replace(
        predictor.info,
        test_errors=error_metrics(predict(predictor, split.test), split.test.times),
        command=command,
        settings={"train": asdict(config), "data": split.settings},
    )
    predictor.save(output)
    with curves.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([Epoch._fields, *history])
    plot_loss(history, curves.with_suffix(".png"))
    best = min(history, key=lambda epoch: epoch.validation_mae_ms)
    print(f"{output}: epoch {best.epoch} of {config.epochs}, validation MAE {best.validation_mae_ms:.3f} ms; {curves}")
    report(predictor, split, command, plot, arguments.json, arguments.save_baselines)


@contextmanager
def _progress(num_epochs: int) -> Iterator[Callable[[Epoch], None]]:
    from tqdm import tqdm

    best = float("inf")
    interval = 0.1 if sys.stderr.isatty() else 10.0
    with tqdm(total=num_epochs, desc="training", unit="epoch", mininterval=interval, file=sys.stderr) as bar:

        def on_epoch(epoch: Epoch) -> None:
            nonlocal best
            best = min(best, epoch.validation_mae_ms)
            bar.set_postfix_str(f"validation MAE {epoch.validation_mae_ms:.3f} ms, best {best:.3f}", refresh=False)
            bar.update()

        yield on_epoch


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m predictor.train", description="Train the MLP latency predictor.")
    parser.add_argument("data", type=Path, metavar="DATA", help="rounds of predictor.collect, .parquet or .csv")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.npz", help="loss curves are put beside it")
    defaults = DatasetSettings()
    parser.add_argument(
        "--num-rounds", type=int, default=defaults.num_rounds, help="rounds to draw; 0: all (default: %(default)s)"
    )
    parser.add_argument(
        "--split-seed", type=int, default=defaults.seed, help="of drawing and of the 8:1:1 split (default: %(default)s)"
    )
    add_report_flags(parser)
    add_config_flags(parser)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
