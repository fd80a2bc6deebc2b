"""Gives each test a new graph, with the same random seed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import before_tensorflow  # noqa: F401  # first
import pytest
from program_with_tensorflow import ProgramWithTensorFlow


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


@pytest.fixture(scope="session")
def program_with_tensorflow(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ProgramWithTensorFlow]:
    pytest.importorskip("tensorflow")
    program = ProgramWithTensorFlow(tmp_path_factory.mktemp("program") / "errors")
    yield program
    program.end()
