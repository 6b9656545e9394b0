"""The functions from features to seconds, by kind: plain numpy, and the arrays each is made of.

Know neither files nor what a feature means, except that a two-piece fit is split by the scheduled tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from predictor.features import SCHEDULED_TOKENS


class Regressor:
    """Seconds (n,) for features (n, k). Made of the arrays that `names` lists, which are also its attributes.

    A constructor raises ValueError for an array that is not finite real numbers of the shape told.
    """

    kind: ClassVar[str]
    names: ClassVar[tuple[str, ...]]

    def __call__(self, features: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def arrays(self) -> dict[str, np.ndarray]:
        """What `from_arrays` makes the same regressor of."""
        return {name: np.asarray(getattr(self, name)) for name in self.names}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Raises KeyError, TypeError or ValueError if the arrays are not those of this kind."""
        return cls(**arrays)


def numbers(
    name: str,
    values: object,
    shape: tuple[int | None, ...] = (),
    dtype: type = np.float64,
    may_be_infinite: bool = False,
) -> np.ndarray:
    """`values` as an array of `dtype`; None in `shape` stands for any length of at least 1.

    Raises ValueError for what is not real numbers (integers, for an integer dtype), of another shape, or not finite.
    """
    array = np.asarray(values)
    allowed = "iu" if np.issubdtype(dtype, np.integer) else "iuf"
    if array.dtype.kind not in allowed:
        raise ValueError(f"{name}: {array.dtype} is not allowed; {'integers' if allowed == 'iu' else 'real numbers'}")
    if array.ndim != len(shape) or any(
        size == 0 or wanted not in (None, size) for size, wanted in zip(array.shape, shape, strict=True)
    ):
        told = " x ".join("any" if size is None else str(size) for size in shape) or "one number"
        raise ValueError(f"{name}: shape {array.shape} is not allowed; {told}")
    with np.errstate(over="ignore"):
        array = array.astype(dtype)
    if np.isnan(array).any() or not (may_be_infinite or np.isfinite(array).all()):
        raise ValueError(f"{name}: a value is not finite")
    return array


class Linear(Regressor):
    """bias + features @ weights, in seconds and seconds per unit of each feature: weights (k,)."""

    kind = "linear"
    names = ("weights", "bias")

    def __init__(self, weights: np.ndarray, bias: float | np.ndarray) -> None:
        self.weights = numbers("weights", weights, (None,))
        self.bias = float(numbers("bias", bias))

    def __call__(self, features: np.ndarray) -> np.ndarray:
        return features @ self.weights + self.bias


class TwoPiece(Regressor):
    """One Linear for rounds of up to `split_tokens` scheduled tokens, one above: weights (2, k), biases (2,)."""

    kind = "two_piece"
    names = ("weights", "biases", "split_tokens")

    def __init__(self, weights: np.ndarray, biases: np.ndarray, split_tokens: float | np.ndarray = 512) -> None:
        self.weights = numbers("weights", weights, (2, None))
        self.biases = numbers("biases", biases, (2,))
        self.split_tokens = float(numbers("split_tokens", split_tokens))

    def __call__(self, features: np.ndarray) -> np.ndarray:
        small, large = self.weights @ features.T + self.biases[:, None]
        return np.where(features[:, SCHEDULED_TOKENS] > self.split_tokens, large, small)


class Mlp(Regressor):
    """Fully connected layers with ReLU between them, on standardised features.

    layers: (weights (inputs, outputs), bias (outputs,)), the last with one output.
    Features are taken as (x - input_mean) / input_scale; the output o is o * target_scale + target_mean seconds.
    """

    kind = "mlp"
    names = ("input_mean", "input_scale", "target_mean", "target_scale")

    def __init__(
        self,
        layers: Sequence[tuple[np.ndarray, np.ndarray]],
        *,
        input_mean: np.ndarray,
        input_scale: np.ndarray,
        target_mean: float | np.ndarray,
        target_scale: float | np.ndarray,
    ) -> None:
        self.input_mean = numbers("input_mean", input_mean, (None,))
        num_inputs = len(self.input_mean)
        self.input_scale = numbers("input_scale", input_scale, (num_inputs,))
        self.target_mean = float(numbers("target_mean", target_mean))
        self.target_scale = float(numbers("target_scale", target_scale))
        if self.target_scale <= 0 or (self.input_scale <= 0).any():
            raise ValueError("input_scale, target_scale: 0 or below is not allowed; above 0")
        self.layers = []
        for number, (weights, bias) in enumerate(layers):
            num_outputs = 1 if number == len(layers) - 1 else None
            weights = numbers(f"weights_{number}", weights, (num_inputs, num_outputs), np.float32)
            num_inputs = weights.shape[1]
            bias = numbers(f"bias_{number}", bias, (num_inputs,), np.float32)
            self.layers.append((np.ascontiguousarray(weights), bias))
        if not self.layers:
            raise ValueError("layers: none is not allowed; at least one")
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
        arrays = super().arrays()
        for number, (weights, bias) in enumerate(self.layers):
            arrays |= {f"weights_{number}": weights, f"bias_{number}": bias}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        others = dict(arrays)
        num_layers = sum(name.startswith("weights_") for name in arrays)
        layers = [(others.pop(f"weights_{number}"), others.pop(f"bias_{number}")) for number in range(num_layers)]
        return cls(layers, **others)


class Trees(Regressor):
    """A sum of regression trees, all their nodes in flat arrays.

    At an inner node a row goes to `left` where its feature is <= threshold, else to `right`; both come after it, so
    that every path ends. A leaf is its own child on both sides. `roots` (trees,) are the trees' first nodes, `base` is
    added to the sum of the leaves' values.
    """

    kind = "gbt"
    names = ("feature", "threshold", "left", "right", "value", "roots", "base")

    def __init__(
        self,
        feature: np.ndarray,
        threshold: np.ndarray,
        left: np.ndarray,
        right: np.ndarray,
        value: np.ndarray,
        roots: np.ndarray,
        base: float | np.ndarray,
    ) -> None:
        self.feature = numbers("feature", feature, (None,), np.intp)
        nodes = np.arange(len(self.feature))
        self.threshold = numbers("threshold", threshold, nodes.shape, may_be_infinite=True)
        self.left = numbers("left", left, nodes.shape, np.intp)
        self.right = numbers("right", right, nodes.shape, np.intp)
        self.value = numbers("value", value, nodes.shape)
        self.roots = numbers("roots", roots, (None,), np.intp)
        self.base = float(numbers("base", base))
        is_leaf = (self.left == nodes) & (self.right == nodes)
        least, most = np.minimum(self.left, self.right), np.maximum(self.left, self.right)
        if not (is_leaf | (least > nodes) & (most < len(nodes))).all():
            raise ValueError("left, right: a child that does not come after its node is not allowed")
        if not ((self.roots >= 0) & (self.roots < len(nodes))).all() or (self.feature < 0).any():
            raise ValueError("roots, feature: a place that does not exist is not allowed")
        self._num_features = int(self.feature.max()) + 1

    def __call__(self, features: np.ndarray) -> np.ndarray:
        if features.shape[1] < self._num_features:
            raise ValueError(f"features: {features.shape[1]} are not allowed; at least {self._num_features}")
        rows = np.arange(len(features))[:, None]
        nodes = np.broadcast_to(self.roots, (len(features), len(self.roots)))
        while True:
            goes_left = features[rows, self.feature[nodes]] <= self.threshold[nodes]
            below = np.where(goes_left, self.left[nodes], self.right[nodes])
            if np.array_equal(below, nodes):
                return self.base + self.value[nodes].sum(axis=1)
            nodes = below

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


REGRESSORS: dict[str, type[Regressor]] = {regressor.kind: regressor for regressor in (Linear, TwoPiece, Mlp, Trees)}
