"""Comparison of results of `EmbeddingVariable.export`, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Export", "assert_same"]

Export = dict[str, NDArray[Any]]


def assert_same(got: Export, expected: Export) -> None:
    assert list(got) == list(expected)
    for column, values in expected.items():
        if not np.array_equal(got[column], values):  # ten times as fast as the assertion
            np.testing.assert_array_equal(got[column], values, err_msg=column)
