"""Functions that torch.compile does not trace."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch
from torch._compile import _disable_dynamo

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    _P = ParamSpec("_P")

__all__ = ["outside_of_graphs"]

_T = TypeVar("_T")


def outside_of_graphs(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Returns `function`, wrapped so that torch.compile breaks its graph there and traces nothing.

    Like torch.compiler.disable, which however takes seconds even if nothing is compiled.
    """
    outside: Callable[_P, _T] = _disable_dynamo(function)

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if torch.compiler.is_compiling():
            return outside(*args, **kwargs)
        return function(*args, **kwargs)

    return call
