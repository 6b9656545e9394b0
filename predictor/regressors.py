"""The functions from features to seconds, by kind: plain numpy, and the arrays each is made of.

Know neither files nor what a feature means, except that a two-piece fit is split by the scheduled tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from predictor.features import SCHEDULED_TOKENS


class Regressor(Protocol):
    kind: ClassVar[str]

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Seconds (n,) for features (n, k)."""
        ...

    def arrays(self) -> dict[str, np.ndarray]:
        """What `from_arrays` makes the same regressor of."""
        ...

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Regressor:
        """Raises KeyError or ValueError if the arrays are not those of this kind."""
        ...


class Mean:
    """The same time for every round."""

    kind: ClassVar[str] = "mean"

    def __init__(self, time: float) -> None:
        self.time = float(time)

    def __call__(self, features: np.ndarray) -> np.ndarray:
        return np.full(len(features), self.time)

    def arrays(self) -> dict[str, np.ndarray]:
        return {"time": np.array(self.time)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Mean:
        return cls(float(arrays["time"]))


class Linear:
    """bias + features @ weights, in seconds and seconds per unit of each feature: weights (k,)."""

    kind: ClassVar[str] = "linear"

    def __init__(self, weights: np.ndarray, bias: float) -> None:
        self.weights = np.asarray(weights, dtype=np.float64)
        self.bias = float(bias)

    def __call__(self, features: np.ndarray) -> np.ndarray:
        return features @ self.weights + self.bias

    def arrays(self) -> dict[str, np.ndarray]:
        return {"weights": self.weights, "bias": np.array(self.bias)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Linear:
        return cls(arrays["weights"], float(arrays["bias"]))


class TwoPiece:
    """One Linear for rounds of up to `split_tokens` scheduled tokens, one above: weights (2, k), biases (2,)."""

    kind: ClassVar[str] = "two_piece"

    def __init__(self, weights: np.ndarray, biases: np.ndarray, split_tokens: float = 512) -> None:
        self.weights = np.asarray(weights, dtype=np.float64)
        self.biases = np.asarray(biases, dtype=np.float64)
        self.split_tokens = float(split_tokens)

    def __call__(self, features: np.ndarray) -> np.ndarray:
        small, large = self.weights @ features.T + self.biases[:, None]
        return np.where(features[:, SCHEDULED_TOKENS] > self.split_tokens, large, small)

    def arrays(self) -> dict[str, np.ndarray]:
        return {"weights": self.weights, "biases": self.biases, "split_tokens": np.array(self.split_tokens)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> TwoPiece:
        return cls(arrays["weights"], arrays["biases"], float(arrays["split_tokens"]))


class Mlp:
    """Fully connected layers with ReLU between them, on standardised features.

    layers: (weights (inputs, outputs), bias (outputs,)), the last with one output.
    Features are taken as (x - input_mean) / input_scale; the output o is o * target_scale + target_mean seconds.
    """

    kind: ClassVar[str] = "mlp"

    def __init__(
        self,
        layers: Sequence[tuple[np.ndarray, np.ndarray]],
        *,
        input_mean: np.ndarray,
        input_scale: np.ndarray,
        target_mean: float,
        target_scale: float,
    ) -> None:
        self.layers = [
            (np.ascontiguousarray(weights, dtype=np.float32), np.asarray(bias, dtype=np.float32))
            for weights, bias in layers
        ]
        self.input_mean = np.asarray(input_mean, dtype=np.float64)
        self.input_scale = np.asarray(input_scale, dtype=np.float64)
        self.target_mean, self.target_scale = float(target_mean), float(target_scale)
        self._input_factor = 1.0 / self.input_scale
        *hidden, (last_weights, last_bias) = self.layers
        self._hidden = hidden
        self._last_weights = (last_weights[:, 0] * np.float32(self.target_scale)).copy()
        self._last_bias = float(last_bias[0]) * self.target_scale + self.target_mean

    def __call__(self, features: np.ndarray) -> np.ndarray:
        # Standardised in float64: float32 would lose the small differences of large features.
        standard = features - self.input_mean
        standard *= self._input_factor
        hidden = standard.astype(np.float32)
        for weights, bias in self._hidden:
            hidden = hidden @ weights
            hidden += bias
            np.maximum(hidden, 0.0, out=hidden)
        return (hidden @ self._last_weights).astype(np.float64) + self._last_bias

    def arrays(self) -> dict[str, np.ndarray]:
        arrays = {
            "input_mean": self.input_mean,
            "input_scale": self.input_scale,
            "target_mean": np.array(self.target_mean),
            "target_scale": np.array(self.target_scale),
        }
        for number, (weights, bias) in enumerate(self.layers):
            arrays |= {f"weights_{number}": weights, f"bias_{number}": bias}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Mlp:
        num_layers = sum(name.startswith("weights_") for name in arrays)
        return cls(
            [(arrays[f"weights_{number}"], arrays[f"bias_{number}"]) for number in range(num_layers)],
            input_mean=arrays["input_mean"],
            input_scale=arrays["input_scale"],
            target_mean=float(arrays["target_mean"]),
            target_scale=float(arrays["target_scale"]),
        )


class Trees:
    """A sum of regression trees, all their nodes in flat arrays.

    At an inner node a row goes to `left` where its feature is <= threshold, else to `right`. A leaf is its own
    child on both sides. `roots` (trees,) are the trees' first nodes, `base` is added to the sum of the leaves' values.
    """

    kind: ClassVar[str] = "gbt"

    def __init__(
        self,
        feature: np.ndarray,
        threshold: np.ndarray,
        left: np.ndarray,
        right: np.ndarray,
        value: np.ndarray,
        roots: np.ndarray,
        base: float,
    ) -> None:
        self.feature = np.asarray(feature, dtype=np.intp)
        self.threshold = np.asarray(threshold, dtype=np.float64)
        self.left = np.asarray(left, dtype=np.intp)
        self.right = np.asarray(right, dtype=np.intp)
        self.value = np.asarray(value, dtype=np.float64)
        self.roots = np.asarray(roots, dtype=np.intp)
        self.base = float(base)

    def __call__(self, features: np.ndarray) -> np.ndarray:
        rows = np.arange(len(features))[:, None]
        nodes = np.broadcast_to(self.roots, (len(features), len(self.roots)))
        while True:
            goes_left = features[rows, self.feature[nodes]] <= self.threshold[nodes]
            below = np.where(goes_left, self.left[nodes], self.right[nodes])
            if np.array_equal(below, nodes):
                return self.base + self.value[nodes].sum(axis=1)
            nodes = below

    def arrays(self) -> dict[str, np.ndarray]:
        names = ("feature", "threshold", "left", "right", "value", "roots")
        return {**{name: getattr(self, name) for name in names}, "base": np.array(self.base)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Trees:
        return cls(**{name: arrays[name] for name in arrays if name != "base"}, base=float(arrays["base"]))

    @classmethod
    def from_sklearn(cls, model: Any) -> Trees:
        """The trees of a fitted sklearn.ensemble.HistGradientBoostingRegressor without categorical features.

        scikit-learn publishes no arrays of these trees; this reads the attributes that its own predict reads.
        """
        nodes = [tree.nodes for (tree,) in model._predictors]
        roots = np.cumsum([0] + [len(tree) for tree in nodes[:-1]])
        flat = np.concatenate(nodes)
        own = np.arange(len(flat))
        offset = np.repeat(roots, [len(tree) for tree in nodes])
        is_leaf = flat["is_leaf"].astype(bool)
        return cls(
            feature=np.where(is_leaf, 0, flat["feature_idx"]),
            threshold=np.where(is_leaf, np.inf, flat["num_threshold"]),
            left=np.where(is_leaf, own, flat["left"] + offset),
            right=np.where(is_leaf, own, flat["right"] + offset),
            value=np.where(is_leaf, flat["value"], 0.0),
            roots=roots,
            base=float(np.ravel(model._baseline_prediction)[0]),
        )


REGRESSORS: dict[str, type[Mean] | type[Linear] | type[TwoPiece] | type[Mlp] | type[Trees]] = {
    regressor.kind: regressor for regressor in (Mean, Linear, TwoPiece, Mlp, Trees)
}
