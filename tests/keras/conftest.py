"""Keras runs on torch in these tests, unless the environment says otherwise."""

from __future__ import annotations

import importlib.util
import os

import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")


@pytest.fixture(autouse=True)
def _alike_every_time() -> None:
    if importlib.util.find_spec("keras") is not None:
        import keras

        keras.utils.set_random_seed(7)
