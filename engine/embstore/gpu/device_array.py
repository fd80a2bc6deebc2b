"""Arrays in a GPU's memory, for ids and rows, without PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from embstore import _core
from embstore.errors import InvalidArgumentError
from embstore.gpu.choice import EMULATED, check_gpu, full_name, gpu_number, gpu_to_open
from embstore.table import checks

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DeviceArray"]

# DLPack's device types. The emulated GPU uses EXTENSION.
CUDA = 2
EXTENSION = 12

# DLPack's values for the consumer's stream that need no ordering: 1 is CUDA's default stream, and
# with -1 the consumer orders the work itself.
_NEED_NO_ORDER = (-1, 0, 1)

_DTYPES = (np.dtype(np.int64), np.dtype(np.float32))


class DeviceArray:
    """A C-contiguous array of int64 or float32 in the memory of a GPU.

    It also works on the emulated GPU, whose memory the host can't address, so that a program which
    keeps its batches on a GPU can be tried without one. It supports DLPack:
    `torch.from_dlpack(array)` shares its memory (on a real GPU), and `embedding_variable.lookup`
    takes it. Its own work runs on the GPU's default stream; the stream of a DLPack consumer waits
    for that.
    """

    def __init__(self, values: NDArray[Any], device: str | None = None) -> None:
        """Copies `values`, of int64 or float32, to the device.

        device: "cuda", "cuda:N" or "emulated" (default: the environment variable EMBSTORE_DEVICE,
            else "cuda").
        """
        values = np.asarray(checks.plain_array("values", values), order="C")
        self._make(values.shape, values.dtype, device)
        self.copy_from(values)

    @classmethod
    def empty(
        cls, shape: Sequence[int], dtype: type[np.generic], device: str | None = None
    ) -> Self:
        """Returns an array whose values are undefined."""
        if not isinstance(shape, Sequence):
            raise InvalidArgumentError(f"shape must be a tuple of integers, got {shape!r}")
        try:
            chosen: np.dtype[Any] = np.dtype(dtype)
        except (TypeError, ValueError):
            raise InvalidArgumentError(f"dtype must be int64 or float32, got {dtype!r}") from None
        array = cls.__new__(cls)
        array._make(tuple(shape), chosen, device)
        return array

    def _make(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: str | None) -> None:
        if dtype not in _DTYPES:
            raise InvalidArgumentError(f"values must be int64 or float32, got {dtype}")
        if device is not None:
            check_gpu("device", device)
        shape = tuple(checks.integer("shape", size, at_least=0) for size in shape)
        gpu = gpu_to_open(device)
        self._shape = shape
        self._dtype = dtype
        self._device = gpu[0]
        self._memory = _core.DeviceMemory(gpu, prod(shape) * dtype.itemsize)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    @property
    def device(self) -> str:
        """The name that was given: "cuda", "cuda:N" or "emulated"."""
        return self._device

    def numpy(self) -> NDArray[Any]:
        """Returns a copy in host memory, after the work on the default stream."""
        values = np.empty(self._shape, self._dtype)
        self._memory.read(_bytes_of(values))
        return values

    def copy_from(self, values: NDArray[Any]) -> None:
        """Copies `values`, of the same shape and dtype, to the device."""
        values = checks.plain_array("values", values)
        if values.shape != self._shape or values.dtype != self._dtype:
            raise InvalidArgumentError(
                f"values must be {self._dtype} of shape {self._shape}, "
                f"got {values.dtype} of shape {values.shape}"
            )
        self._memory.write(_bytes_of(np.asarray(values, order="C")))

    def __array__(self, *_args: Any, **_options: Any) -> NoReturn:
        # Without this method NumPy would make an array with one object, the DeviceArray.
        raise TypeError(
            f"it lies in the memory of {full_name(self._device)}; numpy() gives a copy on the host"
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return (EXTENSION, 0) if self._device == EMULATED else (CUDA, gpu_number(self._device))

    def __dlpack__(self, *, stream: int | None = None, **_options: Any) -> Any:
        # Orders the consumer's stream behind the default one. Other options concern only copies.
        if stream is not None and stream not in _NEED_NO_ORDER:
            self._memory.come_before(stream)
        kind, number = self.__dlpack_device__()
        return _core.to_dlpack(
            self,
            self._memory.address(),
            list(self._shape),
            self._dtype == np.float32,
            kind,
            number,
        )

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self._shape}, dtype={self._dtype}, device={self._device!r})"


def _bytes_of(values: NDArray[Any]) -> NDArray[np.uint8]:
    return values.reshape(-1).view(np.uint8)
