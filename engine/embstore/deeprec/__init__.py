"""Gives TensorFlow's graph mode DeepRec's names: a program for DeepRec's TensorFlow runs after

    import tensorflow.compat.v1 as tf
    import embstore.deeprec

This adds to `tf` what DeepRec adds: `get_embedding_variable`, `StorageOption` and the other
options, feature columns over embedding variables, optimizers that train rows, and savers that keep
rows. From then on `tensorflow.contrib` and `tensorflow.core.framework.embedding` can be imported,
with their parts for embedding variables. The import turns TensorFlow 2's behavior off
(`tf.disable_v2_behavior`), so it must come before the first graph.

engine/docs/deeprec.md says what each name does, and how that differs from DeepRec.
"""

from __future__ import annotations

from embstore.errors import MissingLibraryError

try:
    import tensorflow.compat.v1 as _tf
except ImportError as error:
    raise MissingLibraryError(
        "embstore.deeprec needs TensorFlow: pip install 'embstore[deeprec]', which is pip install "
        "tensorflow-cpu"
    ) from error

from embstore.deeprec.additions import add_names
from embstore.deeprec.making import get_embedding_variable
from embstore.deeprec.variable import EmbeddingVariable

__all__ = ["EmbeddingVariable", "get_embedding_variable"]

_tf.disable_v2_behavior()
add_names()
