"""Models whose embeddings become tables of embstore's, and back."""

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
    "converted_model",
    "distributed_model",
    "embeddings",
    "original_model",
    "refuse_regularized",
    "save_as_original_model",
    "table_of",
    "variables",
]


def variables(model: Any) -> list[EmbeddingVariable]:
    """The tables of a model's (or layer's) embeddings, each once, for `embstore.save` and others.

    Compile a model before: tables have the slots of its optimizer then.
    """
    optimizer = optimizer_of(model)
    found = embeddings(model)
    for layer in found:
        if optimizer is not None and layer.trainable:
            layer.table.train_by(optimizer)
    return [layer.variable for layer in found]


def embeddings(model: Any) -> list[Embedding]:
    """The embeddings of ours that a model or layer has, each once."""
    found = (layer for layer in _layers(model) if isinstance(layer, Embedding))
    return list({id(layer): layer for layer in found}.values())


def distributed_model(
    model: Any,
    *,
    optimizer: Any = None,
    ev_option: EmbeddingVariableOption | Callable[[Any], EmbeddingVariableOption] | None = None,
    shards: int | None = None,
) -> Any:
    """The same model, with an `Embedding` of embstore's for each `keras.layers.Embedding`.

    All weights are taken over, those of embeddings as the rows that their keys start by; so are
    masks, layers that are shared, models in models, and what the model was compiled with (its
    optimizer starts anew).

    model: a Sequential or functional model.
    optimizer and shards: as of `Embedding`, for all of them.
    ev_option: for all of them; or a function that gives the one of a `keras.layers.Embedding`.

    Raises UnsupportedError for other models, and for embeddings that are regularized, constrained,
    quantized or have LoRA.
    """
    replaced = 0

    def convert(layer: Any) -> Any:
        nonlocal replaced
        replaced += 1
        refuse_regularized(layer)
        return table_of(
            layer,
            Embedding,
            optimizer=optimizer,
            ev_option=ev_option(layer) if callable(ev_option) else ev_option,
            shards=shards,
        )

    converted = converted_model(model, keras.layers.Embedding, convert)
    if not replaced:
        raise InvalidArgumentError("model has no keras.layers.Embedding that could be replaced")
    return converted


def save_as_original_model(model: Any, path: str | os.PathLike[str]) -> None:
    """Saves, as model.save does, the model with `keras.layers.Embedding`s: it needs no embstore.

    path: ends with ".keras". The optimizer's state is left out.

    Raises InvalidArgumentError where an embedding takes any int64: no array has so many rows.
    """
    original_model(model).save(path)


def original_model(model: Any) -> Any:
    """The model with `keras.layers.Embedding`s, which have the rows as they are now."""
    return converted_model(model, Embedding, _original)


def refuse_regularized(layer: Any) -> None:
    if layer.embeddings_regularizer is not None or layer.embeddings_constraint is not None:
        raise UnsupportedError(
            f"{layer.name}: an embedding with a regularizer or constraint can't be a table of "
            "embstore's, since both need the whole table at each step"
        )


def table_of(layer: Any, make: Callable[..., Embedding], **arguments: Any) -> Embedding:
    """What `make` makes in place of a `keras.layers.Embedding`, whose weights its keys start by."""
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
        converted.table.start_by(Constant(np.array(layer.get_weights()[0], np.float32)))
    return converted


def _original(layer: Embedding) -> Any:
    rows = layer.dense_rows()
    original = keras.layers.Embedding(layer.input_dim, layer.output_dim, **_shared_arguments(layer))
    original.build()
    original.set_weights([rows])
    return original


def _shared_arguments(layer: Any) -> dict[str, Any]:
    """What an embedding of Keras's and one of ours take alike."""
    names = ("mask_zero", "name", "trainable", "activity_regularizer")
    return {**{name: getattr(layer, name) for name in names}, "dtype": layer.dtype_policy}


def converted_model(model: Any, kind: Any, convert: Callable[[Any], Any]) -> Any:
    """A clone of the model, in which layers of that kind are what `convert` makes of them; they are
    cloned as others are where it makes None. A table of ours that it isn't given is both models'.
    """
    if not isinstance(model, (keras.Sequential, Functional)):
        raise UnsupportedError(
            f"model must be a Sequential or functional one, got {type(model).__name__}; use "
            "embstore.keras.Embedding in it"
        )
    clones: list[tuple[Any, Any]] = []

    def clone(layer: Any) -> Any:
        made = convert(layer) if isinstance(layer, kind) else None
        if made is not None:
            return made
        if not isinstance(layer, kind) and any(isinstance(inner, kind) for inner in _layers(layer)):
            raise UnsupportedError(
                f"{layer.name}: its embeddings are out of reach in a {type(layer).__name__}; use "
                "embstore.keras.Embedding in it"
            )
        if any(isinstance(inner, Embedding) for inner in _layers(layer)):
            return layer
        cloned = type(layer).from_config(layer.get_config())
        if isinstance(layer, keras.layers.Layer):  # else an operation of keras.ops
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
