"""Finds, from a model's graph, which ids of a batch it will look up in which table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import tree

from embstore.errors import UnsupportedError
from embstore.keras.distributed import DistributedEmbedding
from embstore.keras.embedding import Embedding
from embstore.keras.models import embeddings
from embstore.keras.private import Functional, functional_of, nodes_of
from embstore.keras.table import Table

__all__ = ["LookUps", "forget_requested", "trained_tables"]


@dataclass(frozen=True)
class _InnerModel:
    """A model inside the model."""

    look_ups: LookUps
    inputs: Any  # a structure of its inputs, of which only the structure is used


class LookUps:
    """The look-ups of a Sequential or functional model: the part of it that computes ids from
    inputs.

    Raises UnsupportedError if the model's graph doesn't show that.
    """

    def __init__(self, model: Any) -> None:
        graph = _graph_of(model)
        # The layers and models that take ids, with their numbers of tensors.
        self._consumers: list[tuple[Embedding | _InnerModel, int]] = []
        tensors: list[Any] = []
        found: set[int] = set()
        for node in nodes_of(graph):
            for consumer, consumed in _id_consumers(node):
                self._consumers.append((consumer, len(consumed)))
                tensors += consumed
                found |= (
                    {id(consumer)}
                    if isinstance(consumer, Embedding)
                    else _layer_ids(consumer.look_ups)
                )
        for layer in embeddings(model):
            if id(layer) not in found:
                raise _unreachable(layer, f"{model.name} doesn't call it in its graph")
        self._ids_model = (
            keras.Model(graph.input, tensors, name=f"{model.name}_ids") if tensors else None
        )
        for layer in [] if self._ids_model is None else embeddings(self._ids_model):
            raise UnsupportedError(
                f"{layer.name}: {model.name} computes ids from its rows, so they aren't known "
                "before it is trained; leave prefetching out"
            )

    def layers(self) -> Iterator[Embedding]:
        """Yields the layer of each look-up."""
        for consumer, _ in self._consumers:
            if isinstance(consumer, Embedding):
                yield consumer
            else:
                yield from consumer.look_ups.layers()

    def ids(self, inputs: Any) -> list[Any]:
        """Returns the ids of each look-up, int64 tensors of any shape.

        inputs: in the form that the model is called with.
        """
        if self._ids_model is None:
            return []
        tensors = iter(tree.flatten(self._ids_model(inputs, training=False)))
        result = []
        for consumer, count in self._consumers:
            consumed = [next(tensors) for _ in range(count)]
            if isinstance(consumer, Embedding):
                result += [keras.ops.cast(each, "int64") for each in consumed]
            else:
                result += consumer.look_ups.ids(tree.pack_sequence_as(consumer.inputs, consumed))
        return result


def trained_tables(look_ups: LookUps) -> list[Table]:
    """Returns the tables that a step trains and whose rows can be requested ahead."""
    tables = {id(layer.table): layer.table for layer in look_ups.layers() if layer.trainable}
    return [table for table in tables.values() if table.variable.internals.can_prefetch]


def forget_requested(tables: Sequence[Table]) -> None:
    """Drops rows that an earlier loop requested and didn't train."""
    for table in tables:
        table.variable.internals.forget_prefetched()


def _graph_of(model: Any) -> Any:
    if isinstance(model, keras.Sequential) and type(model).call is keras.Sequential.call:
        functional = functional_of(model)
        if functional is None:
            raise UnsupportedError(
                f"{model.name} isn't built yet; begin it with a keras.Input, or build it"
            )
        return functional
    if isinstance(model, Functional) and type(model).call is Functional.call:
        return model
    raise UnsupportedError(
        f"{model.name} is a {type(model).__name__} with a call of its own, of which nobody can "
        "tell what it looks up; make it a Sequential or functional model, or train it in a loop "
        "over embstore.prefetching"
    )


def _id_consumers(node: Any) -> Iterator[tuple[Embedding | _InnerModel, list[Any]]]:
    """Yields the layers, or inner models, that take ids in a call, with their tensors."""
    layer = node.operation
    arguments = node.arguments
    if isinstance(layer, keras.layers.Layer) and embeddings(layer):
        inputs = arguments.args[0] if arguments.args else arguments.kwargs["inputs"]
        tensors = tree.flatten(inputs)
        if isinstance(layer, Embedding):
            yield layer, tensors
        elif isinstance(layer, DistributedEmbedding):
            for embedding, tensor in zip(layer.embedding_of_features(), tensors, strict=True):
                yield embedding, [tensor]
        elif isinstance(layer, (keras.Sequential, Functional)):
            yield _InnerModel(LookUps(layer), inputs), tensors
        else:
            raise _unreachable(
                embeddings(layer)[0], f"it lies in {layer.name}, a {type(layer).__name__}"
            )


def _layer_ids(look_ups: LookUps) -> set[int]:
    return {id(layer) for layer in look_ups.layers()}


def _unreachable(layer: Embedding, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"{layer.name}: what it looks up can't be told from a batch, since {why}; have a "
        "Sequential or functional model call it, or train in a loop over embstore.prefetching"
    )
