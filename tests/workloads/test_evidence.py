"""The content that a checkpoint's checksum covers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embstore as es
from pmemlab.workloads.evidence import checkpoint_sha256


class Exported:
    """A variable's export with some columns replaced."""

    def __init__(self, variable: es.EmbeddingVariable, **changed: Any) -> None:
        self.name = variable.name
        self._columns = {**variable.export(), **changed}

    def export(self) -> dict[str, Any]:
        return self._columns


def checksum(
    variable: es.EmbeddingVariable,
    steps: int = 3,
    dense: dict[str, Any] | None = None,
    **changed: Any,
) -> str:
    exported: Any = Exported(variable, **changed)
    return checkpoint_sha256(steps, [exported], {"sum": np.ones(2, np.float32)} | (dense or {}))


@pytest.fixture
def variable() -> es.EmbeddingVariable:
    made = es.get_embedding_variable("table", 2, optimizer=es.optimizers.Adagrad(0.1))
    keys = np.arange(5)
    made.lookup(keys, train=True)
    made.apply_gradients(keys, np.ones((5, 2), np.float32))
    return made


def test_every_bit_of_every_column_of_a_table_counts(variable: es.EmbeddingVariable) -> None:
    columns: dict[str, Any] = {**variable.export()}
    assert {*columns} == {"keys", "values", "freqs", "versions", "accumulator"}
    whole = checksum(variable)
    for name, column in columns.items():
        changed = column.copy()
        changed.view(np.uint8).reshape(-1)[-1] ^= 1
        assert checksum(variable, **{name: changed}) != whole, name
    assert checksum(variable) == whole


def test_the_step_and_the_dense_part_count(variable: es.EmbeddingVariable) -> None:
    others = [
        checksum(variable),
        checksum(variable, steps=4),
        checksum(variable, dense={"sum": np.array([1, 2], np.float32)}),
        checksum(variable, dense={"steps": np.array(9, np.float32)}),
    ]
    assert len(set(others)) == len(others)
