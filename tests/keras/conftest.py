"""Sets the Keras backend of these tests to torch, unless the environment sets another one.

`make check` runs them again on TensorFlow, except for tests with the mark `any_backend`.
"""

from __future__ import annotations

import importlib.util
import os

import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "any_backend: the test checks arguments, files or processes, which don't depend on Keras's "
        "backend. It doesn't build graphs, train, evaluate or hand weights to the backend, unless "
        "another case of the same test does so too",
    )


@pytest.fixture(autouse=True)
def _set_random_seed() -> None:
    if importlib.util.find_spec("keras") is not None:
        import keras

        keras.utils.set_random_seed(7)
