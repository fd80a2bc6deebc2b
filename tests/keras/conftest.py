"""Keras runs on torch in these tests, unless the environment says otherwise."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", reason="Keras isn't installed: pip install pmemlab[keras]")


@pytest.fixture(autouse=True)
def _alike_every_time() -> None:
    keras.utils.set_random_seed(7)
