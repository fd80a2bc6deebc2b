"""Each test begins with a graph of its own, in which what is drawn is alike every time."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _new_graph() -> Iterator[None]:
    if importlib.util.find_spec("tensorflow") is None:
        yield
        return
    import tensorflow.compat.v1 as tf

    import embstore.deeprec  # noqa: F401

    with tf.Graph().as_default():
        tf.set_random_seed(7)
        yield
