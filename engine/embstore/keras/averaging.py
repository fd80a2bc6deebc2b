"""Averages the gradients of the dense weights over workers that train one model together."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras

from embstore.errors import InvalidArgumentError, UnsupportedError
from embstore.keras.private import scaling_optimizer, trainable_variables_of
from embstore.keras.rows import Rows

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["averaged"]

_MARK = "_embstore_averages"


def averaged(optimizer: Any, group: Any = None) -> Any:
    """Returns the Keras optimizer, changed so that it applies the mean of all workers' gradients.

        torch.distributed.init_process_group("gloo", ...)
        model.compile(embstore.keras.averaged(keras.optimizers.Adam()), "binary_crossentropy")
        model.fit(...)  # with a part of its own of each batch, in every worker

    Dense weights that are equal at the start stay equal, to the bit; the first step checks that
    they are equal. Rows of tables aren't averaged: their shards combine the workers' gradients
    (`embstore.cluster.Job`). If a gradient of rows is inf or nan, all workers see that. All workers
    must make the same steps. Losses, metrics and the statistics of layers (BatchNormalization) stay
    each worker's own.

    optimizer: if the loss is scaled, the keras.optimizers.LossScaleOptimizer.
    group: a process group of torch.distributed; None: the default one.

    Raises UnsupportedError if Keras doesn't run on torch, and InvalidArgumentError if there is no
    process group. A step raises InvalidArgumentError if the initial weights differ.
    """
    if keras.backend.backend() != "torch":
        raise UnsupportedError(
            "gradients are averaged by torch.distributed, and Keras runs on "
            f"{keras.backend.backend()} here; set KERAS_BACKEND=torch before Keras is imported"
        )
    from torch import distributed

    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise InvalidArgumentError(
            f"optimizer must be one of keras.optimizers, got {type(optimizer).__name__}"
        )
    if not distributed.is_available() or not distributed.is_initialized():
        raise InvalidArgumentError(
            "group: there is no process group; call torch.distributed.init_process_group in each "
            "worker first"
        )
    if getattr(optimizer, _MARK, False):
        return optimizer
    apply, is_compared = optimizer.apply, False

    # No wrapping class: tables recognize Keras's optimizers by their classes.
    def apply_mean(grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
        nonlocal is_compared
        variables = trainable_variables
        if variables is None:
            variables = trainable_variables_of(optimizer)
        dense = [i for i, variable in enumerate(variables) if not isinstance(variable, Rows)]
        if not is_compared:
            scaling = scaling_optimizer()  # which Keras may have wrapped around it
            if scaling is not None and scaling is not optimizer:
                raise UnsupportedError(
                    "a LossScaleOptimizer leaves out steps in one worker that others make; give "
                    "averaged the LossScaleOptimizer itself, or compile with auto_scale_loss=False"
                )
            _check_equal_weights([variables[i] for i in dense], group)
            is_compared = True
        means = list(grads)
        present = [i for i, grad in enumerate(grads) if grad is not None]
        # A gradient of rows names the gathered gradients, and isn't averaged: the workers share
        # only whether it is finite, as 0 or nan.
        to_average = [grads[i] if i in dense else grads[i] * 0 for i in present]
        for i, mean in zip(present, _all_reduced_means(to_average, group), strict=True):
            means[i] = mean if i in dense else grads[i] + mean
        return apply(means, trainable_variables)

    optimizer.apply = apply_mean
    setattr(optimizer, _MARK, True)
    return optimizer


def _all_reduced_means(gradients: list[Tensor], group: Any) -> list[Tensor]:
    """Returns the workers' mean gradients. All gradients of a dtype are one message."""
    import torch
    from torch import distributed

    means: list[Tensor] = list(gradients)
    for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
        positions = [i for i, gradient in enumerate(gradients) if gradient.dtype == dtype]
        flat = torch.cat([gradients[i].reshape(-1) for i in positions])
        distributed.all_reduce(flat, group=group)
        flat /= distributed.get_world_size(group)
        parts = torch.split(flat, [gradients[i].numel() for i in positions])
        for i, part in zip(positions, parts, strict=True):
            means[i] = part.view_as(gradients[i])
    return means


def _check_equal_weights(variables: list[Any], group: Any) -> None:
    from torch import distributed

    own = [
        (variable.path, zlib.crc32(keras.ops.convert_to_numpy(variable).tobytes()))
        for variable in variables
    ]
    all_weights: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(all_weights, own, group=group)
    for rank, theirs in enumerate(all_weights):
        if [value for _, value in theirs] != [value for _, value in all_weights[0]]:
            other = next(
                (
                    one[0]
                    for one, first in zip(theirs, all_weights[0], strict=False)
                    if one[1] != first[1]
                ),
                "their number",
            )
            raise InvalidArgumentError(
                f"weights must start alike in all workers, but {other} differs between rank 0 and "
                f"rank {rank}; call keras.utils.set_random_seed with the same seed, or load the "
                "same weights"
            )
