"""Models that save and load their tables along with Keras's files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import keras

from embstore.errors import InvalidArgumentError, UnsupportedError
from embstore.keras.models import (
    convert_model,
    embeddings,
    original_model,
    to_table_layer,
    variables,
)
from embstore.keras.prefetching import prefetching
from embstore.keras.private import Functional, layers_in
from embstore.keras.saving import rows_kept_apart
from embstore.openembedding import checkpoints, exb, model_files
from embstore.openembedding.embedding import Embedding, place_by_flags
from embstore.table import checks

__all__ = ["Model", "distributed_model", "pulling", "save_as_original_model"]

PathLike = str | os.PathLike[str]


class ServedModel:
    """The methods of a Keras model that `distributed_model` replaces: they handle tables too."""

    def compile(
        self, *args: Any, experimental_run_tf_function: bool | None = None, **kwargs: Any
    ) -> None:
        """Compiles the model as Keras does, and makes the tables: their optimizer is known now.

        experimental_run_tf_function: has no effect; Keras 3 has no such argument.
        """
        del experimental_run_tf_function
        super().compile(*args, **kwargs)  # type: ignore[misc]
        variables(self)

    def save(
        self,
        filepath: PathLike,
        overwrite: bool = True,
        include_optimizer: bool = True,
        **kwargs: Any,
    ) -> None:
        """Saves to a folder, or to a file if the name ends with ".keras"; see `model_files`.

        include_optimizer: False: without the arguments of `compile`, and without the optimizer's
            state of the dense weights.
        """
        if checks.flag("include_optimizer", include_optimizer):
            self._save("save", filepath, model_files.WHOLE, overwrite, True, kwargs)
            return
        with _uncompiled(self):
            self._save("save", filepath, model_files.WHOLE, overwrite, False, kwargs)

    def save_weights(self, filepath: PathLike, overwrite: bool = True, **kwargs: Any) -> None:
        """Does what `save` does, without the configuration. A file ends with ".weights.h5"."""
        self._save("save_weights", filepath, model_files.WEIGHTS, overwrite, True, kwargs)

    def load_weights(self, filepath: PathLike, **kwargs: Any) -> None:
        """Loads what `save` or `save_weights` saved: dense weights, the optimizer's state if the
        model is compiled, and the rows.
        """
        optimizer = getattr(self, "optimizer", None)
        if optimizer is not None and self.built and not optimizer.built:  # type: ignore[attr-defined]
            optimizer.build(self.trainable_variables)  # type: ignore[attr-defined]
        files = model_files.saved_model_files(filepath)
        if files.rows is None or not embeddings(self):
            super().load_weights(files.file, **kwargs)  # type: ignore[misc]
            return
        checkpoints.check_persisted(self, files.rows)  # before any dense weight is changed
        with rows_kept_apart():
            super().load_weights(files.file, **kwargs)  # type: ignore[misc]
        exb.load_server_model(self, os.fspath(files.rows))

    def save_as_original_model(
        self, filepath: PathLike, overwrite: bool = True, include_optimizer: bool = True
    ) -> None:
        save_as_original_model(self, filepath, overwrite, include_optimizer)

    def _save(
        self,
        method: str,
        filepath: PathLike,
        file_name: str,
        overwrite: bool,
        include_optimizer: bool,
        kwargs: dict[str, Any],
    ) -> None:
        has_tables = bool(embeddings(self))
        is_replaced = exb.save_server_model is not checkpoints.save_server_model
        with model_files.saving_model(
            filepath, file_name, overwrite=overwrite, rows_apart=has_tables and is_replaced
        ) as files:
            save = getattr(super(), method)
            if files.rows is None or not has_tables:
                save(files.file, **kwargs)
                return
            with rows_kept_apart():
                save(files.file, **kwargs)
            exb.save_server_model(self, os.fspath(files.rows), include_optimizer=include_optimizer)


class Model(ServedModel, keras.Model):  # type: ignore[misc]
    """A base class of models, with the methods of a model that `distributed_model` returns."""


def distributed_model(
    model: Any,
    sparse_as_dense_size: int = 64,
    num_shards: int | None = None,
    override_method: bool = True,
    explicit: bool = False,
) -> Any:
    """Returns the model with tables, placed as `flags` says, in place of its
    `keras.layers.Embedding`s.

    model: not compiled yet. If it is neither Sequential nor functional, its embeddings stay as they
        are: use `Embedding` in it.
    sparse_as_dense_size: embeddings with at most this number of ids stay Keras's own.
    num_shards: as in `Embedding`.
    override_method: has save, save_weights and load_weights keep the tables too, and adds
        save_as_original_model.
    explicit: True: refuses embeddings with a regularizer or constraint, and models that aren't
        Sequential or functional; False: as in `Embedding`.

    Raises InvalidArgumentError and UnsupportedError, also for flags.
    """
    if not isinstance(model, keras.Model):
        raise InvalidArgumentError(f"model must be a Keras model, got {type(model).__name__}")
    if model.compiled:
        raise InvalidArgumentError("model must not be compiled yet; compile what is returned")
    size = checks.integer("sparse_as_dense_size", sparse_as_dense_size, at_least=0)

    def convert(layer: Any) -> Any:
        if layer.input_dim <= size:
            return None
        return to_table_layer(
            layer,
            Embedding,
            embeddings_regularizer=layer.embeddings_regularizer,
            embeddings_constraint=layer.embeddings_constraint,
            num_shards=num_shards,
            explicit=explicit,
        )

    if isinstance(model, (keras.Sequential, Functional)):
        if any(isinstance(layer, keras.layers.Embedding) for layer in layers_in(model)):
            model = convert_model(model, keras.layers.Embedding, convert)
    elif explicit:
        raise UnsupportedError(
            f"model must be a Sequential or functional one, got {type(model).__name__}; use "
            "Embedding in it, and leave explicit at False"
        )
    place_by_flags(embeddings(model))
    if override_method and not isinstance(model, ServedModel):
        model.__class__ = _served_class(type(model))
    return model


def pulling(dataset: Any, model: Any, steps: int | None = None, *, shuffle: bool = True) -> Any:
    """Calls `embstore.keras.prefetching`: returns the dataset for `model.fit`, which requests the
    rows of the next batch from the servers while one is trained.

    steps: has no effect; rows that were requested and not trained are dropped.
    shuffle: as in `embstore.keras.prefetching`, if the dataset is a PyDataset.
    """
    if steps is not None:
        checks.integer("steps", steps, at_least=-1)
    return prefetching(dataset, model, shuffle=shuffle)


def save_as_original_model(
    model: Any, filepath: PathLike, overwrite: bool = True, include_optimizer: bool = True
) -> None:
    """Saves the model with `keras.layers.Embedding`s, so it needs no embstore.

    filepath: ends with ".keras"; or, on TensorFlow, a folder for the SavedModel that TensorFlow
        Serving loads.
    include_optimizer: must be False.

    Raises InvalidArgumentError if an embedding takes any int64: an array can't have that many rows.
    """
    if include_optimizer:
        raise InvalidArgumentError(
            "include_optimizer must be given as False: an original model can't be trained on"
        )
    if os.path.lexists(filepath) and not overwrite:
        raise InvalidArgumentError(f"filepath: {filepath} exists; give another, or overwrite=True")
    is_file = os.fspath(filepath).endswith(".keras")
    if not is_file and keras.backend.backend() != "tensorflow":
        raise UnsupportedError(
            f"filepath: {filepath} would be a SavedModel, which Keras makes on TensorFlow alone, "
            f"and it runs on {keras.backend.backend()} here; give a name that ends with .keras"
        )
    with _with_original_class(model), _uncompiled(model):
        original = original_model(model)
    if is_file:
        original.save(filepath)
    else:
        original.export(os.fspath(filepath), verbose=False)


_served_classes: dict[type, type] = {}


def _served_class(kind: type) -> type:
    """Returns a class derived from `kind`, with its name and module: Keras finds the class of a
    saved model by these.
    """
    if kind not in _served_classes:
        _served_classes[kind] = type(
            kind.__name__, (ServedModel, kind), {"__module__": kind.__module__}
        )
    return _served_classes[kind]


@contextlib.contextmanager
def _with_original_class(model: Any) -> Iterator[None]:
    """Gives the model, during the block, the class that it had before `distributed_model`."""
    kind = type(model)
    original = next((base for base, served in _served_classes.items() if served is kind), kind)
    model.__class__ = original
    try:
        yield
    finally:
        model.__class__ = kind


@contextlib.contextmanager
def _uncompiled(model: Any) -> Iterator[None]:
    compiled, optimizer = model.compiled, getattr(model, "optimizer", None)
    model.compiled, model.optimizer = False, None
    try:
        yield
    finally:
        model.compiled, model.optimizer = compiled, optimizer
