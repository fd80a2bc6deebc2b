"""Keras 3 layers over embedding variables, on the PyTorch and TensorFlow backends.

    model = keras.Sequential([
        keras.Input((26,), dtype="int64"),
        embstore.keras.Embedding(None, 16),  # any int64 is a key
        keras.layers.Flatten(),
        keras.layers.Dense(1, activation="sigmoid"),
    ])
    model.compile(keras.optimizers.Adagrad(0.05), "binary_crossentropy")
    model.fit(ids, labels)
    model.save("model.keras")  # with its rows

Rows are trained once a step, when the model's Keras optimizer applies its gradients: by that
optimizer's rule and learning rate, schedules and callbacks included, or by a table's own
`optimizer=`. Only the rows of a batch are read and written, also by Adam and others that Keras
applies to whole tables.

`distributed_model` turns the `keras.layers.Embedding`s of a model into these, and
`save_as_original_model` turns them back. `DistributedEmbedding` takes the configurations of
keras-rs. `variables(model)` are the tables themselves, for `embstore.save` and `embstore.persist`.

A file of `model.save` or `save_weights` has the rows, with slots, frequencies, versions and the
keys that wait; a load of a file that lacks them raises. What is written into a `.keras` file goes
through memory; for tables that are too large for it see `rows_kept_apart`. A model that is loaded
or cloned has its tables where its author had them, unless `rows_at` says otherwise. What would
lose rows
unseen raises: `get_weights` and `set_weights`, and with them
`EarlyStopping(restore_best_weights=True)`, take `ModelCheckpoint` in place.

With `shards=n` a table's rows lie in n other processes, on a Ray cluster (`embstore.cluster`). For
a model's file those write and read the rows themselves, in a folder that Python's `tempfile` makes:
where some are on other computers, have TMPDIR name one that all of them share.
In the workers of a job (`embstore.cluster.run`) such tables are shared, and `averaged(optimizer)`
has dense weights follow the mean of the workers' gradients, on torch.
`model.fit(prefetching(dataset, model))` asks them for the rows of the next batch while one is
trained.

Gradient accumulation and moving averages of the Keras optimizer, SGD's momentum and the other
options that have no counterpart in embstore.optimizers, and JAX are refused by errors that say so.
On TensorFlow Keras itself squares the gradient of each duplicate in a batch by itself, and on torch
those of a key together; here they are always together.
"""

try:
    import keras as _keras  # noqa: F401
except ImportError as error:
    from embstore.errors import MissingLibraryError

    missing = (error.name or "keras").partition(".")[0]
    if missing != "keras":
        raise MissingLibraryError(
            f"Keras needs {missing}, which isn't installed: its backend, most likely, for which "
            "torch serves, too; set KERAS_BACKEND=torch before Python starts"
        ) from error
    raise MissingLibraryError(
        "embstore.keras needs Keras 3, which isn't installed; get it with: "
        "pip install embstore[keras]"
    ) from error

from embstore.keras.averaging import averaged
from embstore.keras.configs import FeatureConfig, TableConfig
from embstore.keras.distributed import DistributedEmbedding
from embstore.keras.embedding import Embedding
from embstore.keras.models import distributed_model, save_as_original_model, variables
from embstore.keras.places import rows_at
from embstore.keras.prefetching import prefetching
from embstore.keras.saving import rows_kept_apart

__all__ = [
    "DistributedEmbedding",
    "Embedding",
    "FeatureConfig",
    "TableConfig",
    "averaged",
    "distributed_model",
    "prefetching",
    "rows_at",
    "rows_kept_apart",
    "save_as_original_model",
    "variables",
]
