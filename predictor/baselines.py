"""What the MLP is compared with: the baselines' fits, on the same features, rows and weights as its own.

Knows arrays only. scikit-learn is needed to fit the trees, never to use them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from predictor.features import SCHEDULED_TOKENS
from predictor.regressors import Linear, Regressor, Trees, TwoPiece

SPLIT_TOKENS = 512  # where the published piecewise fit of measured rounds changes its slope
NUM_TREES = 200
TREE_LEARNING_RATE = 0.1
TREE_LEAVES = 31

Fit = Callable[[np.ndarray, np.ndarray, np.ndarray], Regressor]  # features (n, k), seconds (n,), weights (n,)


def fit_mean(features: np.ndarray, seconds: np.ndarray, weights: np.ndarray) -> Linear:
    """The same time for every round: a plane without slope."""
    return Linear(np.zeros(features.shape[1]), float(np.average(seconds, weights=weights)))


def fit_linear(features: np.ndarray, seconds: np.ndarray, weights: np.ndarray) -> Linear:
    return Linear(*_least_squares(features, seconds, weights))


def fit_two_piece(features: np.ndarray, seconds: np.ndarray, weights: np.ndarray) -> TwoPiece:
    """A linear fit up to SPLIT_TOKENS scheduled tokens and one above; both the whole fit where a piece has no rows."""
    above = features[:, SCHEDULED_TOKENS] > SPLIT_TOKENS
    if above.all() or not above.any():
        above = np.ones(len(features), dtype=bool)
        pieces = (above, above)
    else:
        pieces = (~above, above)
    fits = [_least_squares(features[rows], seconds[rows], weights[rows]) for rows in pieces]
    return TwoPiece(np.stack([fit[0] for fit in fits]), np.array([fit[1] for fit in fits]), SPLIT_TOKENS)


def fit_trees(features: np.ndarray, seconds: np.ndarray, weights: np.ndarray) -> Trees:
    """Gradient-boosted trees, squared error.

    Raises ValueError where scikit-learn is missing, RuntimeError where its trees do not come out as they went in.
    """
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor  # pyright: ignore[reportMissingImports]
        from threadpoolctl import threadpool_limits  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError("needs scikit-learn: pip install 'sarathi-serve-fair[predictor]'") from None
    model = HistGradientBoostingRegressor(
        max_iter=NUM_TREES,
        learning_rate=TREE_LEARNING_RATE,
        max_leaf_nodes=TREE_LEAVES,
        early_stopping=False,  # pyright: ignore[reportArgumentType]  # stubs that know less than scikit-learn
        random_state=0,
    )
    with threadpool_limits(1):  # on a shared machine threads that wait for each other take far longer than one
        model.fit(features, seconds, sample_weight=weights)
    trees = Trees.from_sklearn(model)
    sample = features[:256]
    if not np.allclose(trees(sample), model.predict(sample), rtol=1e-6, atol=0.0):
        import sklearn  # pyright: ignore[reportMissingImports]

        raise RuntimeError(f"scikit-learn {sklearn.__version__} keeps its trees in a way that this code does not read")
    return trees


BASELINES: dict[str, Fit] = {"mean": fit_mean, "linear": fit_linear, "two_piece": fit_two_piece, "gbt": fit_trees}


def _least_squares(features: np.ndarray, seconds: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Weights (k,) per unit of each feature and the bias of the weighted least-squares fit.

    Columns repeat each other (decode_ctx_interaction is sum_decode_context_len), so of the many best fits it is the
    one of the smallest standardised weights; a column without variance, as the constant, gets 0.
    """
    root = np.sqrt(weights / weights.mean())
    mean = features.mean(axis=0)
    scale = features.std(axis=0)
    constant = scale <= 1e-9 * np.maximum(1.0, np.abs(mean))
    scale[constant] = 1.0
    standard = (features - mean) / scale
    standard[:, constant] = 0.0
    design = np.column_stack([standard, np.ones(len(features))])
    solution = np.linalg.lstsq(design * root[:, None], seconds * root, rcond=1e-8)[0]
    coefficients = solution[:-1] / scale
    return coefficients, float(solution[-1] - mean @ coefficients)
