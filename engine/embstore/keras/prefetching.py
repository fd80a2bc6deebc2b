"""Data for `fit` whose rows are requested before a step looks them up."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import keras

from embstore.errors import InvalidArgumentError, UnsupportedError
from embstore.keras.look_ups import LookUps, forget_requested, trained_tables
from embstore.keras.models import embeddings, variables
from embstore.keras.private import ArrayDataAdapter, DataAdapter, get_data_adapter, is_tf_dataset
from embstore.keras.table import Table
from embstore.table.prefetching import prefetching as prefetched

__all__ = ["prefetching"]


def prefetching(dataset: Any, model: Any, *, shuffle: bool = True, class_weight: Any = None) -> Any:
    """Returns the dataset for `model.fit`, which requests the rows of the next batch while one is
    trained.

        model.compile(...)
        model.fit(embstore.keras.prefetching(dataset, model), epochs=2)

    It helps tables with rows in other processes (`shards=`), or below an HBM tier. Results have the
    same bits as without.

    dataset: a keras.utils.PyDataset, torch DataLoader, tf.data.Dataset or Python generator of
        batches, in the form that `fit` takes; on TensorFlow a tf.data.Dataset. It is read one batch
        ahead: if `steps_per_epoch` ends an epoch before the dataset ends, the first batch of the
        next epoch has been read before the dataset's on_epoch_end, and lacks the changes that this
        makes.
    model: compiled; Sequential or functional, and so are the models in it that have tables. It may
        compute ids from its inputs in any way, but not from rows of tables.
    shuffle, class_weight: as in `fit`, which ignores its own, and y, for such a dataset; with
        shuffle the batches of a PyDataset come in random order.

    The result is a dataset for `fit`, and on torch can be iterated over for `train_on_batch`; on
    TensorFlow it is a tf.data.Dataset.

    Raises InvalidArgumentError, and UnsupportedError for unsupported models and data.
    """
    if not getattr(model, "compiled", False):
        raise InvalidArgumentError(
            "model must be compiled first: tables are made when their optimizer is known"
        )
    look_ups = LookUps(model) if embeddings(model) else None
    variables(model)
    if keras.backend.backend() != "torch":
        from embstore.keras.tensorflow_prefetching import prefetched_dataset  # imports TensorFlow

        if not is_tf_dataset(dataset):
            raise UnsupportedError(
                f"dataset must be a tf.data.Dataset on TensorFlow, got {type(dataset).__name__}; "
                "tf.data.Dataset.from_generator makes one"
            )
        if class_weight is not None:
            raise UnsupportedError(
                "class_weight must be left to fit where dataset is a tf.data.Dataset"
            )
        return dataset if look_ups is None else prefetched_dataset(dataset, look_ups)
    try:
        adapter = get_data_adapter(
            dataset,
            shuffle=shuffle and isinstance(dataset, keras.utils.PyDataset),
            class_weight=class_weight,
        )
    except ValueError as error:
        raise InvalidArgumentError(f"dataset: {error}") from error
    except KeyError:  # Keras looks for the first array, and there is none
        adapter = None
    if not hasattr(adapter, "get_torch_dataloader") or isinstance(adapter, ArrayDataAdapter):
        raise InvalidArgumentError(
            "dataset must be a keras.utils.PyDataset, a torch DataLoader, a tf.data.Dataset or a "
            f"generator of batches, got {type(dataset).__name__}"
        )
    return adapter if look_ups is None else _Prefetched(adapter, look_ups)


class _Prefetched(DataAdapter):  # type: ignore[misc]
    """The batches of another adapter, on torch, with their rows requested ahead."""

    def __init__(self, adapter: Any, look_ups: LookUps) -> None:
        self._adapter = adapter
        self._look_ups = look_ups

    def __iter__(self) -> Iterator[Any]:
        # The tables, and whether they are trained, may have changed since the last iteration.
        tables = trained_tables(self._look_ups)
        batches = iter(self._adapter.get_torch_dataloader())
        if not tables:
            yield from batches
            return
        forget_requested(tables)
        # The first batch isn't read ahead: fit may look at it before it starts an epoch.
        yield from itertools.islice(batches, 1)
        # The batch whose ids are requested, and its ids.
        requested: list[tuple[Any, list[Any]]] = []

        def ids_for(table: Table) -> Any:
            def ids(batch: Any) -> list[Any]:
                if not requested or requested[0][0] is not batch:
                    requested[:] = [(batch, self._ids(batch))]
                found = zip(self._look_ups.layers(), requested[0][1], strict=True)
                return [ids for layer, ids in found if layer.table is table]

            return ids

        yield from prefetched(batches, {table.variable: ids_for(table) for table in tables})

    def _ids(self, batch: Any) -> list[Any]:
        import torch

        with torch.no_grad():
            inputs, *_ = keras.utils.unpack_x_y_sample_weight(batch)
            return [keras.ops.convert_to_numpy(ids) for ids in self._look_ups.ids(inputs)]

    def get_torch_dataloader(self) -> _Prefetched:
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
