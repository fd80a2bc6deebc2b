"""All uses of Keras 3 that Keras doesn't document; pyproject.toml limits its version for them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import keras
from keras.src.backend.common import global_state
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.legacy.saving import legacy_h5_format
from keras.src.models import Functional
from keras.src.trainers.data_adapters import ArrayDataAdapter, get_data_adapter, is_tf_dataset
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

__all__ = [
    "ASSIGNS_GRADIENTS",
    "ArrayDataAdapter",
    "DataAdapter",
    "Functional",
    "applying_optimizer",
    "before_h5_files",
    "called_model",
    "functional_of",
    "get_data_adapter",
    "is_input",
    "is_tf_dataset",
    "layers_in",
    "learning_rate_of",
    "nodes_of",
    "optimizer_of",
    "scaling_optimizer",
    "trainable_variables_of",
]

# The method of an optimizer that assigns gradients to variables with overwrite_with_gradient.
ASSIGNS_GRADIENTS = "_overwrite_variables_directly_with_gradients"

_MAX_FRAMES = 12  # Keras's own, between the caller and the step


def functional_of(sequential: Any) -> Any:
    """Returns the functional model of a keras.Sequential, or None before it is built."""
    return sequential._functional


def nodes_of(functional: Any) -> Iterator[Any]:
    """Yields the calls of a functional model's operations, each after those that it needs."""
    for depth in sorted(functional._nodes_by_depth, reverse=True):
        yield from functional._nodes_by_depth[depth]


def layers_in(layer: Any) -> Iterator[Any]:
    """Returns the layer and the layers in it at any depth."""
    return iter(layer._flatten_layers())


def is_input(tensor: Any) -> bool:
    """Returns whether a symbolic tensor is an input of a model."""
    history = getattr(tensor, "_keras_history", None)
    return history is not None and isinstance(history.operation, keras.layers.InputLayer)


def learning_rate_of(optimizer: Any) -> Any:
    """Returns the learning rate as it was given: a variable, a schedule or a function."""
    return optimizer._learning_rate


def trainable_variables_of(optimizer: Any) -> list[Any]:
    """Returns the variables that the optimizer was built for."""
    return list(optimizer._trainable_variables)


def optimizer_of(model: Any) -> Any:
    """Returns a model's optimizer, or None; of a LossScaleOptimizer, the one that it wraps."""
    optimizer = getattr(model, "optimizer", None)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return optimizer.inner_optimizer
    return optimizer


def called_model() -> Any:
    """Returns the outermost model, or layer, whose call is under way in this thread, or None. A
    symbolic call, by which Keras learns shapes, doesn't count.
    """
    if in_stateless_scope():
        return None
    return getattr(global_state.get_global_attribute("current_call_ctx"), "entry_layer", None)


def before_h5_files(check: Callable[[Any], None]) -> None:
    """Has `check` called with each model that Keras is about to save as a .h5 file. If it raises,
    an existing file stays; Keras itself would have truncated it before.
    """
    save = legacy_h5_format.save_model_to_hdf5

    def check_and_save(model: Any, *arguments: Any, **options: Any) -> None:
        check(model)
        save(model, *arguments, **options)

    legacy_h5_format.save_model_to_hdf5 = check_and_save


def applying_optimizer() -> Any:
    """Returns the Keras optimizer that is in a step, or None. It is the caller in a name scope of
    variables that it makes.
    """
    scopes = global_state.get_global_attribute("name_scope_stack") or []
    callers = [scope.caller for scope in scopes]
    found = [caller for caller in callers if isinstance(caller, keras.optimizers.Optimizer)]
    return found[-1] if found else None


def scaling_optimizer() -> Any:
    """Returns the LossScaleOptimizer whose step calls this, or None. Only the stack shows it."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_MAX_FRAMES):
        if frame is None:
            break
        caller = frame.f_locals.get("self")
        if isinstance(caller, keras.optimizers.LossScaleOptimizer):
            return caller
        frame = frame.f_back
    return None
