"""`tf.train.init_from_checkpoint`, which refuses embedding variables."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow.compat.v1 as tf

from embstore.deeprec.variable import EmbeddingVariable, variables_of
from embstore.errors import UnsupportedError

__all__ = ["extend_init_from_checkpoint"]


def extend_init_from_checkpoint(original: Callable[..., Any]) -> Callable[..., Any]:
    """Has it refuse embedding variables: it replaces initializers, and those don't restore rows."""

    @functools.wraps(original)
    def init_from_checkpoint(ckpt_dir_or_file: Any, assignment_map: Any) -> Any:
        pairs = assignment_map.items() if hasattr(assignment_map, "items") else assignment_map
        for _, target in pairs:
            for variable in _embedding_variables_in(target):
                raise UnsupportedError(
                    f"assignment_map: {variable.op.name} is an embedding variable, whose rows come "
                    "back in a session, by tf.train.Saver([variable]).restore(session, path); name "
                    "other variables alone in the map"
                )
        return original(ckpt_dir_or_file, assignment_map)

    return init_from_checkpoint


def _embedding_variables_in(target: Any) -> Iterable[EmbeddingVariable]:
    """Returns a target's embedding variables. target: a variable, a list of them, a variable's
    name, or a scope's, which ends with "/".
    """
    if isinstance(target, EmbeddingVariable):
        return [target]
    if isinstance(target, (list, tuple)):
        return [each for each in target if isinstance(each, EmbeddingVariable)]
    if not isinstance(target, str):
        return []
    known = variables_of(tf.get_default_graph())
    scope = target.strip("/")
    return [
        each
        for each in known
        if scope in ("", each.op.name) or str(each.op.name).startswith(f"{scope}/")
    ]
