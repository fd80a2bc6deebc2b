"""Evaluates and compares tensors of TensorFlow 1 graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["assert_same", "evaluated"]


def evaluated(*tensors: Any) -> list[Any]:
    import tensorflow.compat.v1 as tf

    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        found: list[Any] = session.run(list(tensors))
        return found


def assert_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Asserts that both have the same columns, to the bit."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert np.asarray(value).tobytes() == np.asarray(other[name]).tobytes(), name
