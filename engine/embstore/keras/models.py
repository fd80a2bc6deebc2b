"""Converts models with Keras embeddings into models with embstore tables, and back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from embstore.errors import InvalidArgumentError, UnsupportedError
from embstore.initializers import Constant
from embstore.keras.embedding import Embedding
from embstore.keras.private import Functional, layers_in, optimizer_of
from embstore.options import EmbeddingVariableOption
from embstore.variable import EmbeddingVariable

__all__ = [
    "check_not_regularized",
    "convert_model",
    "distributed_model",
    "embeddings",
    "original_model",
    "save_as_original_model",
    "to_table_layer",
    "variables",
]


def variables(model: Any) -> list[EmbeddingVariable]:
    """Returns the tables of a model's (or layer's) embeddings, each once, for `embstore.save` etc.

    Compile a model first, so that its tables have the slots of its optimizer.
    """
    optimizer = optimizer_of(model)
    found = embeddings(model)
    for layer in found:
        if optimizer is not None and layer.trainable:
            layer.table.set_model_optimizer(optimizer)
    return [layer.variable for layer in found]


def embeddings(model: Any) -> list[Embedding]:
    """Returns the embstore embeddings of a model or layer, each once."""
    found = (layer for layer in _layers(model) if isinstance(layer, Embedding))
    return list({id(layer): layer for layer in found}.values())


def distributed_model(
    model: Any,
    *,
    optimizer: Any = None,
    ev_option: EmbeddingVariableOption | Callable[[Any], EmbeddingVariableOption] | None = None,
    shards: int | None = None,
) -> Any:
    """Returns the same model with an embstore `Embedding` for each `keras.layers.Embedding`.

    It takes over all weights (those of embeddings become the initial rows of their keys), masks,
    shared layers, nested models, and what the model was compiled with (its optimizer starts anew).

    model: a Sequential or functional model.
    optimizer, shards: as in `Embedding`, for all of them.
    ev_option: for all of them; or a function that returns it for a `keras.layers.Embedding`.

    Raises UnsupportedError for other models, and for embeddings with a regularizer, a constraint,
    quantization or LoRA.
    """
    replaced = 0

    def convert(layer: Any) -> Any:
        nonlocal replaced
        replaced += 1
        check_not_regularized(layer)
        return to_table_layer(
            layer,
            Embedding,
            optimizer=optimizer,
            ev_option=ev_option(layer) if callable(ev_option) else ev_option,
            shards=shards,
        )

    converted = convert_model(model, keras.layers.Embedding, convert)
    if not replaced:
        raise InvalidArgumentError("model has no keras.layers.Embedding that could be replaced")
    return converted


def save_as_original_model(model: Any, path: str | os.PathLike[str]) -> None:
    """Saves the model, as model.save does, with `keras.layers.Embedding`s, so it needs no embstore.

    path: ends with ".keras". The optimizer's state is left out.

    Raises InvalidArgumentError if an embedding takes any int64: an array can't have that many rows.
    """
    original_model(model).save(path)


def original_model(model: Any) -> Any:
    """Returns the model with `keras.layers.Embedding`s that have the present rows."""
    return convert_model(model, Embedding, _to_keras_layer)


def check_not_regularized(layer: Any) -> None:
    if layer.embeddings_regularizer is not None or layer.embeddings_constraint is not None:
        raise UnsupportedError(
            f"{layer.name}: an embedding with a regularizer or constraint can't be a table of "
            "embstore's, since both need the whole table at each step"
        )


def to_table_layer(layer: Any, make: Callable[..., Embedding], **arguments: Any) -> Embedding:
    """Makes, by `make`, what replaces a `keras.layers.Embedding`, with its weights as rows."""
    if (
        layer.lora_enabled
        or layer.quantization_mode is not None
        or type(layer) is not keras.layers.Embedding
    ):
        raise UnsupportedError(
            f"{layer.name}: a {type(layer).__name__} with LoRA or quantization, or derived from "
            "keras.layers.Embedding, can't be a table of embstore's"
        )
    converted = make(
        layer.input_dim,
        layer.output_dim,
        layer.embeddings_initializer,
        **_shared_arguments(layer),
        **arguments,
    )
    if layer.built:
        converted.table.set_initializer(Constant(np.array(layer.get_weights()[0], np.float32)))
    return converted


def _to_keras_layer(layer: Embedding) -> Any:
    rows = layer.dense_rows()
    original = keras.layers.Embedding(layer.input_dim, layer.output_dim, **_shared_arguments(layer))
    original.build()
    original.set_weights([rows])
    return original


def _shared_arguments(layer: Any) -> dict[str, Any]:
    """Returns the arguments that Keras's embeddings and embstore's have in common."""
    names = ("mask_zero", "name", "trainable", "activity_regularizer")
    return {**{name: getattr(layer, name) for name in names}, "dtype": layer.dtype_policy}


def convert_model(model: Any, kind: Any, convert: Callable[[Any], Any]) -> Any:
    """Returns a clone of the model in which each layer of class `kind` is replaced by
    convert(layer), or cloned like other layers if that returns None. Other embstore tables are
    shared with the model.
    """
    if not isinstance(model, (keras.Sequential, Functional)):
        raise UnsupportedError(
            f"model must be a Sequential or functional one, got {type(model).__name__}; use "
            "embstore.keras.Embedding in it"
        )
    clones: list[tuple[Any, Any]] = []

    def clone(layer: Any) -> Any:
        replacement = convert(layer) if isinstance(layer, kind) else None
        if replacement is not None:
            return replacement
        if not isinstance(layer, kind) and any(isinstance(inner, kind) for inner in _layers(layer)):
            raise UnsupportedError(
                f"{layer.name}: its embeddings are out of reach in a {type(layer).__name__}; use "
                "embstore.keras.Embedding in it"
            )
        if any(isinstance(inner, Embedding) for inner in _layers(layer)):
            return layer
        cloned = type(layer).from_config(layer.get_config())
        if isinstance(layer, keras.layers.Layer):  # else it is an operation of keras.ops
            clones.append((layer, cloned))
        return cloned

    converted = keras.models.clone_model(model, clone_function=clone, recursive=True)
    for layer, cloned in clones:
        if layer.weights:
            if not cloned.built:
                cloned.build_from_config(layer.get_build_config())
            cloned.set_weights(layer.get_weights())
    config = model.get_compile_config() if getattr(model, "compiled", False) else None
    if config:
        converted.compile_from_config(config)
    return converted


def _layers(layer: Any) -> Iterator[Any]:
    if isinstance(layer, keras.layers.Layer):
        yield from layers_in(layer)
