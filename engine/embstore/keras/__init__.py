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

Rows are trained once per step, when the model's Keras optimizer applies its gradients: with that
optimizer's rule and learning rate, schedules and callbacks included, or with a table's own
`optimizer=`. Only the rows of a batch are read and written, also with Adam and other optimizers
that Keras applies to whole tables.

`distributed_model` replaces the `keras.layers.Embedding`s of a model by these layers, and
`save_as_original_model` replaces them back. `DistributedEmbedding` takes the configurations of
keras-rs. `variables(model)` returns the tables themselves, for `embstore.save` and
`embstore.persist`.

A file of `model.save` or `save_weights` has the rows, with slots, frequencies, versions and keys
that wait for admission; loading a file without them raises. The contents of a `.keras` file go
through memory; for tables that are too large for that see `rows_kept_apart`. A model that is loaded
or cloned has its tables where its author had them, unless `rows_at` gives another place. Calls that
would silently lose rows raise: `get_weights`, `set_weights` and therefore
`EarlyStopping(restore_best_weights=True)`. Use `ModelCheckpoint` instead.

With `shards=n` a table's rows are in n other processes, on a Ray cluster (`embstore.cluster`).
These processes write and read the rows for a model's file themselves, in a folder that Python's
`tempfile` makes: if some are on other computers, set TMPDIR to a folder that all of them share. The
workers of a job (`embstore.cluster.run`) share such tables, and on torch `averaged(optimizer)`
trains dense weights by the mean of the workers' gradients. `model.fit(prefetching(dataset, model))`
requests the rows of the next batch while one is trained.

These raise an error: gradient accumulation and moving averages of the Keras optimizer, SGD's
momentum and other options without a counterpart in embstore.optimizers, and JAX. If a key occurs
several times in a batch, its gradients are summed before they are squared, as Keras does on torch;
on TensorFlow, Keras squares each one separately.
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
