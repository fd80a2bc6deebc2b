"""Data for `fit`, whose rows are on their way before a step looks them up."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import keras
from keras.src.trainers.data_adapters import get_data_adapter, is_tf_dataset
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from embstore._pulling import pulling as pulled
from embstore.errors import InvalidArgumentError, UnsupportedError
from embstore.keras.look_ups import LookUps
from embstore.keras.models import embeddings, variables
from embstore.keras.table import Table

__all__ = ["pulling"]


def pulling(dataset: Any, model: Any, *, shuffle: bool = True, class_weight: Any = None) -> Any:
    """The dataset for `model.fit`, which asks for the rows of the next batch while one is trained.

        model.compile(...)
        model.fit(embstore.keras.pulling(dataset, model), epochs=2)

    It matters where tables have their rows in other processes (`shards=`), or rows below a tier of
    HBM, and changes no bit.

    dataset: a keras.utils.PyDataset, torch DataLoader, tf.data.Dataset or Python generator of
        batches, as `fit` takes them; on TensorFlow a tf.data.Dataset. One batch more is read of it
        than is trained.
    model: compiled; Sequential or functional, and so its models that hold tables. Its ids may be
        computed from its inputs in any way but by rows of tables.
    shuffle, class_weight: as of `fit`, which takes no notice of its own, as little as of y: with
        shuffle a PyDataset's batches come in an order by chance.

    Gives what `fit` takes, and on torch can be iterated over for `train_on_batch`; on TensorFlow a
    tf.data.Dataset.

    Raises InvalidArgumentError, and UnsupportedError for models and data that it can't look into.
    """
    if not getattr(model, "compiled", False):
        raise InvalidArgumentError(
            "model must be compiled first: tables are made when their optimizer is known"
        )
    look_ups = LookUps(model) if embeddings(model) else None
    variables(model)
    if keras.backend.backend() != "torch":
        from embstore.keras.tensorflow_pulled import pulled_dataset

        if not is_tf_dataset(dataset):
            raise UnsupportedError(
                f"dataset must be a tf.data.Dataset on TensorFlow, got {type(dataset).__name__}; "
                "tf.data.Dataset.from_generator makes one"
            )
        if class_weight is not None:
            raise UnsupportedError(
                "class_weight must be left to fit where dataset is a tf.data.Dataset"
            )
        return dataset if look_ups is None else pulled_dataset(dataset, look_ups)
    try:
        adapter = get_data_adapter(
            dataset,
            shuffle=shuffle and isinstance(dataset, keras.utils.PyDataset),
            class_weight=class_weight,
        )
    except ValueError as error:
        raise InvalidArgumentError(f"dataset: {error}") from error
    if not hasattr(adapter, "get_torch_dataloader") or _is_of_arrays(adapter):
        raise InvalidArgumentError(
            "dataset must be a keras.utils.PyDataset, a torch DataLoader, a tf.data.Dataset or a "
            f"generator of batches, got {type(dataset).__name__}"
        )
    return adapter if look_ups is None else _Pulled(adapter, look_ups)


def _is_of_arrays(adapter: Any) -> bool:
    return isinstance(adapter, keras.src.trainers.data_adapters.ArrayDataAdapter)


class _Pulled(DataAdapter):  # type: ignore[misc]
    """Another adapter's batches, on torch."""

    def __init__(self, adapter: Any, look_ups: LookUps) -> None:
        self._adapter = adapter
        self._look_ups = look_ups

    def __iter__(self) -> Iterator[Any]:
        # Tables, and how they are trained, may have changed since the last time.
        tables = trained_tables(self._look_ups)
        batches = iter(self._adapter.get_torch_dataloader())
        if not tables:
            yield from batches
            return
        forget_asked(tables)
        # Nothing is read ahead of the first, at which fit may only look before it begins.
        yield from itertools.islice(batches, 1)
        coming: list[tuple[Any, list[Any]]] = []  # the batch that is asked about, and its ids

        def ids_in(table: Table) -> Any:
            def ids(batch: Any) -> list[Any]:
                if not coming or coming[0][0] is not batch:
                    coming[:] = [(batch, self._ids(batch))]
                found = zip(self._look_ups.layers(), coming[0][1], strict=True)
                return [ids for layer, ids in found if layer.table is table]

            return ids

        yield from pulled(batches, {table.variable: ids_in(table) for table in tables})

    def _ids(self, batch: Any) -> list[Any]:
        import torch

        with torch.no_grad():
            inputs, *_ = keras.utils.unpack_x_y_sample_weight(batch)
            return [keras.ops.convert_to_numpy(ids) for ids in self._look_ups.ids(inputs)]

    def get_torch_dataloader(self) -> _Pulled:
        return self

    def get_numpy_iterator(self) -> Any:
        return self._adapter.get_numpy_iterator()

    @property
    def num_batches(self) -> Any:
        return self._adapter.num_batches

    @property
    def batch_size(self) -> Any:
        return self._adapter.batch_size

    @property
    def has_partial_batch(self) -> Any:
        return self._adapter.has_partial_batch

    @property
    def partial_batch_size(self) -> Any:
        return self._adapter.partial_batch_size

    def on_epoch_begin(self) -> None:
        self._adapter.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._adapter.on_epoch_end()


def forget_asked(tables: list[Table]) -> None:
    """What a loop before has asked for, and not trained."""
    for table in tables:
        table.variable._forget_prefetched()


def trained_tables(look_ups: LookUps) -> list[Table]:
    """Those that a step trains, and that have rows to be asked for ahead."""
    tables = {id(layer.table): layer.table for layer in look_ups.layers() if layer.trainable}
    return [table for table in tables.values() if table.variable._prefetches]
