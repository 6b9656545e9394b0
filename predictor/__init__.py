"""Predicts how long a round will take: features, profiling data, training, evaluation and the model file.

Users run and import it; `sarathi/core` knows only the protocol that `predictor.model.Predictor` satisfies.
"""
