"""Arithmetic on tensors, with numpy's broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import DTypeLike

from embstore.tensorflow1.graph.tensor import Array, Constant, Operand, Run, Tensor, as_tensor

Axes = int | tuple[int, ...] | None


def add(x: Operand, y: Operand, name: str = "add") -> Tensor:
    return _Elementwise(np.add, lambda g, _x, _y: (g, g), x, y, name)


def subtract(x: Operand, y: Operand, name: str = "subtract") -> Tensor:
    return _Elementwise(np.subtract, lambda g, _x, _y: (g, -g), x, y, name)


def multiply(x: Operand, y: Operand, name: str = "multiply") -> Tensor:
    return _Elementwise(np.multiply, lambda g, x, y: (g * y, g * x), x, y, name)


def square(x: Operand, name: str = "square") -> Tensor:
    x = as_tensor(x)
    return multiply(x, x, name)


def reduce_sum(x: Operand, axis: Axes = None, name: str = "reduce_sum") -> Tensor:
    return _Sum(as_tensor(x), axis, name)


def reduce_mean(x: Operand, axis: Axes = None, name: str = "reduce_mean") -> Tensor:
    return _Mean(as_tensor(x), axis, name)


def concat(parts: Sequence[Operand], axis: int, name: str = "concat") -> Tensor:
    return _Concat([as_tensor(part) for part in parts], axis, name)


def cast(value: Operand, dtype: DTypeLike, name: str = "cast") -> Tensor:
    """`value` in numpy's `dtype`."""
    if isinstance(value, Tensor):
        return _Cast(value, dtype, name)
    return Constant(np.asarray(value).astype(dtype), name)


class _Elementwise(Tensor):
    def __init__(
        self,
        function: Callable[[Array, Array], Array],
        gradients: Callable[[Array, Array, Array], tuple[Array, Array]],
        x: Operand,
        y: Operand,
        name: str,
    ) -> None:
        super().__init__(*_operands(x, y), name=name)
        self._function = function
        self._gradients = gradients

    def compute(self, run: Run, /) -> Array:
        x, y = self.inputs
        return self._function(run[x], run[y])

    def backward(self, run: Run, gradient: Array, /) -> Sequence[Array]:
        operands = [run[x] for x in self.inputs]
        gradients = self._gradients(gradient, *operands)
        return [_summed_to(g, x.shape) for g, x in zip(gradients, operands, strict=True)]


class _Sum(Tensor):
    def __init__(self, x: Tensor, axis: Axes, name: str) -> None:
        super().__init__(x, name=name)
        self._axis = axis

    def compute(self, run: Run, /) -> Array:
        x = run[self.inputs[0]]
        return np.asarray(x.sum(self._axis, dtype=x.dtype))

    def backward(self, run: Run, gradient: Array, /) -> Sequence[Array]:
        if self._axis is not None:
            gradient = np.expand_dims(gradient, self._axis)
        return [np.broadcast_to(gradient, run[self.inputs[0]].shape)]


class _Mean(_Sum):
    def compute(self, run: Run, /) -> Array:
        x = run[self.inputs[0]]
        return np.asarray(x.mean(self._axis, dtype=x.dtype))

    def backward(self, run: Run, gradient: Array, /) -> Sequence[Array]:
        (summed,) = super().backward(run, gradient)
        values_a_mean = summed.size // max(gradient.size, 1)
        return [summed / np.asarray(max(values_a_mean, 1), summed.dtype)]


class _Concat(Tensor):
    def __init__(self, parts: Sequence[Tensor], axis: int, name: str) -> None:
        super().__init__(*parts, name=name)
        self._axis = axis

    def compute(self, run: Run, /) -> Array:
        return np.concatenate([run[part] for part in self.inputs], self._axis)

    def backward(self, run: Run, gradient: Array, /) -> Sequence[Array]:
        ends = np.cumsum([run[part].shape[self._axis] for part in self.inputs])[:-1]
        return np.split(gradient, ends, self._axis)


class _Cast(Tensor):
    def __init__(self, value: Tensor, dtype: DTypeLike, name: str) -> None:
        super().__init__(value, name=name)
        self._dtype = np.dtype(dtype)

    def compute(self, run: Run, /) -> Array:
        return run[self.inputs[0]].astype(self._dtype)

    def backward(self, run: Run, gradient: Array, /) -> Sequence[Array]:
        return [gradient.astype(run[self.inputs[0]].dtype)]


def _operands(x: Operand, y: Operand) -> tuple[Tensor, Tensor]:
    """A number beside a tensor is float32, which is what rows are."""
    if isinstance(x, Tensor):
        return x, as_tensor(y, np.float32)
    return as_tensor(x, np.float32), as_tensor(y, np.float32)


def _summed_to(gradient: Array, shape: tuple[int, ...]) -> Array:
    """Undoes the broadcasting of an operand of `shape`."""
    if gradient.shape == shape:
        return gradient
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
    stretched = tuple(i for i, n in enumerate(shape) if n == 1 and gradient.shape[i] != 1)
    return gradient.sum(axis=stretched, keepdims=True) if stretched else gradient
