"""Checks of arguments that are variables; each error names the argument and what was got."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from embstore.errors import InvalidArgumentError
from embstore.table import checks
from embstore.variable import EmbeddingVariable

__all__ = ["check_variable", "check_variable_list"]


def check_variable(value: object) -> EmbeddingVariable:
    """Returns `value`, the argument `variable`. Raises InvalidArgumentError if it is none."""
    if not isinstance(value, EmbeddingVariable):
        raise InvalidArgumentError(
            "variable must be an embstore.EmbeddingVariable (see get_embedding_variable), got "
            f"{_described(value)}"
        )
    return value


def check_variable_list(value: Any) -> list[EmbeddingVariable]:
    """Returns the list `value`, the argument `variables`. Raises InvalidArgumentError if it is no
    list of variables.
    """
    if isinstance(value, EmbeddingVariable):
        raise InvalidArgumentError(f"variables must be a list; give [{value.name}]")
    if not checks.is_iterable(value) or isinstance(value, Mapping):
        raise InvalidArgumentError(
            f"variables must be a list of EmbeddingVariables, got {_described(value)}"
        )
    chosen: list[EmbeddingVariable] = list(value)
    for variable in chosen:
        if not isinstance(variable, EmbeddingVariable):
            raise InvalidArgumentError(
                f"variables must be EmbeddingVariables, got {_described(variable)}"
            )
    return chosen


def _described(value: object) -> str:
    name = type(value).__name__
    if isinstance(getattr(value, "variable", None), EmbeddingVariable):
        return f"{name}; give its .variable"  # a module of PyTorch, for example
    return f"{name}; give its .values()" if isinstance(value, Mapping) else name
