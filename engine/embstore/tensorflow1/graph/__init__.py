"""Deferred computation over embedding variables, for programs written as TensorFlow 1 graphs.

A `Tensor` says how a value is to be computed; a `Session` computes it and owns the variables'
rows. `embstore.feature_column` builds on it, and `embstore.deeprec` has the names by which
DeepRec's programs know all this. It holds what surrounds an embedding, not a model's layers:
those are better written with `embstore.torch`.
"""

from embstore.tensorflow1.graph.arithmetic import (
    add,
    cast,
    concat,
    multiply,
    reduce_mean,
    reduce_sum,
    square,
    subtract,
)
from embstore.tensorflow1.graph.session import Session
from embstore.tensorflow1.graph.tensor import (
    Operand,
    Operation,
    Placeholder,
    Run,
    Tensor,
    as_tensor,
)
from embstore.tensorflow1.graph.training import GlobalStep, Gradient, Trainer
from embstore.tensorflow1.graph.variable import GraphVariable, Initialize, embedding_lookup

__all__ = [
    "GlobalStep",
    "Gradient",
    "GraphVariable",
    "Initialize",
    "Operand",
    "Operation",
    "Placeholder",
    "Run",
    "Session",
    "Tensor",
    "Trainer",
    "add",
    "as_tensor",
    "cast",
    "concat",
    "embedding_lookup",
    "multiply",
    "reduce_mean",
    "reduce_sum",
    "square",
    "subtract",
]
