"""The Keras variable that stands in for a table's rows, and has them trained in a step."""

from __future__ import annotations

from typing import Any, NoReturn

import keras

from embstore.errors import UnsupportedError
from embstore.keras.marks import SIZE
from embstore.keras.private import applying_optimizer, before_h5_files, scaling_optimizer
from embstore.keras.steps import AssignedGradient, record_assigned
from embstore.keras.table import Table

__all__ = ["Rows"]


class Rows(keras.Variable):  # type: ignore[misc]
    """A trainable variable of a model that stands in for rows, which Keras can't hold.

    It has marks.SIZE floats, and so has its gradient. In a backward pass, each look-up gives its
    gradients to the table and adds a mark (`marks`) to that gradient. Because of
    `overwrite_with_gradient`, a Keras optimizer doesn't train this variable but assigns the
    gradient to it; that assignment trains the rows.
    """

    def __init__(self, table: Table, trainable: bool) -> None:
        super().__init__(
            "zeros",
            shape=(SIZE,),
            dtype="float32",
            trainable=trainable,
            autocast=False,  # float16 and bfloat16 have no room for a mark
            name="rows",
        )
        self.overwrite_with_gradient = True
        self.table = table

    def __repr__(self) -> str:
        table = self.table
        dims = f"input_dim={table.vocabulary_size}, output_dim={table.dim}"
        return f"<Rows path={self.path}, of a table of {dims}>"

    def assign(self, value: Any) -> Any:
        optimizer = applying_optimizer()
        if optimizer is None:
            self._refuse("set")
        for option in ("use_ema", "gradient_accumulation_steps"):
            if getattr(optimizer, option, None):
                raise UnsupportedError(
                    f"{self.table.name}: rows can't follow keras.optimizers."
                    f"{type(optimizer).__name__} with {option}; compile the model without"
                )
        if not record_assigned(
            AssignedGradient(self.table, value, _loss_scale(optimizer)), optimizer
        ):
            self._refuse("set")
        return value

    def numpy(self) -> NoReturn:
        self._refuse("given")

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        self._refuse("given")

    def _refuse(self, what: str) -> NoReturn:
        raise UnsupportedError(
            f"{self.table.name}: its rows can't be {what} as one array (get_weights, set_weights, "
            "EarlyStopping's restore_best_weights, a .h5 file of the whole model); save_weights "
            "and load_weights, and the callback ModelCheckpoint, keep them; a layer's "
            "dense_rows() returns them as an array"
        )

    def _refuse_file(self, what: str) -> NoReturn:
        raise UnsupportedError(
            f"{self.table.name}: {what} would not have its rows; model.save and save_weights keep "
            "them, and embstore.keras.save_as_original_model makes a model that needs no embstore"
        )

    # TensorFlow calls these methods for what it writes to files; Keras doesn't.

    def _serialize_to_tensors(self) -> NoReturn:
        self._refuse_file("a checkpoint of tf.train")

    def _restore_from_tensors(self, _: Any) -> NoReturn:
        self._refuse_file("a checkpoint of tf.train")

    def _export_to_saved_model_graph(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse_file("a SavedModel")


def _refuse_h5_file(model: Any) -> None:
    for variable in model.variables:
        if isinstance(variable, Rows):
            variable._refuse("given")


before_h5_files(_refuse_h5_file)


def _loss_scale(optimizer: Any) -> Any:
    """Returns the factor of the loss, which assigned gradients still have; a number or tensor."""
    scale = optimizer.loss_scale_factor or 1.0
    scaling = scaling_optimizer()
    return scale if scaling is None else scaling.dynamic_scale.value * scale
