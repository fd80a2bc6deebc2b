"""Makes tables from PyTorch's weights, and weights from tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from embstore.errors import InvalidArgumentError
from embstore.optimizers import Optimizer
from embstore.options import EmbeddingVariableOption
from embstore.table import checks
from embstore.table.getting import get_embedding_variable
from embstore.table.variable_arguments import check_variable
from embstore.torch.modules import Embedding
from embstore.variable import EmbeddingVariable

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["from_pretrained", "to_torch"]

_ROWS_AT_A_TIME = 1 << 16
_MAX_ROWS = 1 << 40


def from_pretrained(
    weights: Tensor,
    name: str,
    *,
    optimizer: Optimizer | None = None,
    ev_option: EmbeddingVariableOption | None = None,
    partition_num: int = 1,
    shards: int | None = None,
    padding_idx: int | None = None,
) -> Embedding:
    """Returns a module over a new variable in which id i has row i of `weights`.

    weights: (rows, dim), dense, of any real dtype and on any device; for example
        `torch.nn.Embedding(...).weight`.
    name, optimizer, ev_option, partition_num, shards: the arguments of
        `embstore.get_embedding_variable`. Larger ids than `weights` has rows are valid keys, too.
    """
    unfit = _why_no_weights(weights)
    if unfit is not None:
        raise InvalidArgumentError(f"weights must be a tensor of (rows, dim), got {unfit}")
    rows, dim = weights.shape
    variable = get_embedding_variable(
        name,
        dim,
        optimizer=optimizer,
        ev_option=ev_option,
        partition_num=partition_num,
        shards=shards,
    )
    try:
        for first in range(0, rows, _ROWS_AT_A_TIME):
            chunk = weights[first : first + _ROWS_AT_A_TIME].detach().cpu()
            if chunk.dtype != torch.float64:  # float32 holds the values of all others, or nearly
                chunk = chunk.to(torch.float32)
            values = checks.as_float32("weights", chunk.numpy())
            variable.put(np.arange(first, first + len(chunk)), values)
    except BaseException:
        variable.close()
        raise
    return Embedding(variable, padding_idx)


def _why_no_weights(weights: object) -> str | None:
    """Returns why weights can't be used and what to do, or None if they can."""
    if not isinstance(weights, torch.Tensor):
        return type(weights).__name__
    for is_so, what in (
        (weights.is_nested, "a nested one"),
        (weights.dim() != 2, f"{weights.dim()}-D"),
        (weights.layout != torch.strided, "a sparse one; give weights.to_dense()"),
        (weights.is_quantized, "a quantized one; give weights.dequantize()"),
        (weights.is_complex(), "one of complex numbers; a row has floats alone"),
        (weights.is_meta, "one on the device meta, which has no values"),
    ):
        if is_so:
            return what
    return None


def to_torch(variable: EmbeddingVariable, num_embeddings: int | None = None) -> torch.nn.Embedding:
    """Returns a `torch.nn.Embedding` whose row i is the variable's row of id i, or the initial
    value of id i if there is no such row.

    num_embeddings: number of rows (default: the largest key and one).

    Raises InvalidArgumentError if the variable has a key that is negative or no row of the module,
    or if there isn't enough memory.
    """
    variable = check_variable(variable)
    keys = variable.export()["keys"]
    min_key, max_key = (int(keys[0]), int(keys[-1])) if keys.size else (0, -1)
    rows = max_key + 1
    if num_embeddings is not None:
        rows = checks.integer("num_embeddings", num_embeddings, at_least=0, at_most=_MAX_ROWS)
    if min_key < 0 or max_key >= rows:
        raise InvalidArgumentError(
            f"{variable.name} has the key {min_key if min_key < 0 else max_key}, which is no row "
            f"of {rows}; a module of PyTorch has ids from 0 on"
        )
    try:
        weights = torch.empty(rows, variable.dim)
    except (RuntimeError, TypeError) as error:  # TypeError: more rows than PyTorch counts
        raise InvalidArgumentError(
            f"num_embeddings: {rows} rows of dim {variable.dim} are more than this computer has "
            f"memory for, and the largest key of {variable.name} is {max_key}; variable.export() "
            "gives the rows that there are, with their keys"
        ) from error
    for first in range(0, rows, _ROWS_AT_A_TIME):
        chunk = weights[first : first + _ROWS_AT_A_TIME]
        variable.lookup(np.arange(first, first + len(chunk)), count=False, out=chunk.numpy())
    return torch.nn.Embedding(rows, variable.dim, _weight=weights)
