"""Batches of ids in a GPU's memory, the arrays of their rows, and the conditions of updates.

An array is a `DeviceArray`, a PyTorch tensor, or any other array on a GPU that supports DLPack.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from embstore import _core
from embstore.errors import InvalidArgumentError
from embstore.gpu.choice import EMULATED, full_name
from embstore.gpu.device_array import CUDA, EXTENSION, DeviceArray
from embstore.table import checks

__all__ = [
    "BatchConditions",
    "IdsOnDevice",
    "OnDevice",
    "check_same_gpu",
    "ids_on_host",
    "is_on_device",
    "to_host",
]


class OnDevice(Protocol):
    """An array in the memory of a GPU that supports DLPack."""

    def __dlpack__(self) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, int]: ...


def is_on_device(array: object) -> TypeGuard[OnDevice]:
    """Returns whether `array` lies on a GPU, unlike NumPy's and other arrays in host memory."""
    if isinstance(array, np.ndarray):
        return False
    device_of = getattr(array, "__dlpack_device__", None)
    try:
        return device_of is not None and int(device_of()[0]) in (CUDA, EXTENSION)
    except ValueError:  # a tensor of PyTorch's meta device, which has no memory
        return False


def to_host(argument: str, array: OnDevice) -> NDArray[Any]:
    """Returns a copy of the array, after the work on its stream."""
    if isinstance(array, DeviceArray):
        return array.numpy()
    if _is_of_torch(array):
        copy: NDArray[Any] = array.detach().cpu().numpy()  # type: ignore[attr-defined]
        return copy
    raise InvalidArgumentError(
        f"{argument} must be an embstore.DeviceArray or a torch.Tensor to be copied to the host, "
        f"got {type(array).__name__}"
    )


def ids_on_host(ids: checks.Ids | OnDevice) -> NDArray[np.int64]:
    """Returns ids as a NumPy array of their shape. Ids on a GPU are copied after the work on their
    stream.
    """
    return checks.ids(to_host("ids", ids) if is_on_device(ids) else ids)


@dataclass(frozen=True)
class BatchConditions:
    """Conditions of an update that only its GPU knows: int64 arrays in the GPU's memory."""

    keep_mask: OnDevice | None = None  # ids' shape; 0 leaves an id and its gradients out
    refusal: OnDevice | None = None  # (1,): the number of a reason, from 1; 0: not refused
    reasons: tuple[str, ...] = ()  # for refusing the batch: messages of InvalidArgumentErrors
    # (1,): if not 0, the batch is left out: it counts as an apply that changes nothing, no error.
    skip: OnDevice | None = None

    def addresses(self, ids: IdsOnDevice) -> tuple[int, int, int]:
        """Returns the addresses of `keep_mask`, `refusal` and `skip`, 0 for None."""
        return (
            0 if self.keep_mask is None else _address("keep_mask", self.keep_mask, ids, ids.shape),
            0 if self.refusal is None else _address("refusal", self.refusal, ids, (1,)),
            0 if self.skip is None else _address("skip", self.skip, ids, (1,)),
        )


@dataclass(frozen=True)
class IdsOnDevice:
    """int64 ids in a GPU's memory, and the stream on which they are used."""

    array: OnDevice
    address: int
    shape: tuple[int, ...]
    device: str  # "cuda:N" or "emulated"
    stream: int  # its handle; 0 is the default stream

    @classmethod
    def of(cls, array: OnDevice) -> IdsOnDevice:
        """Returns the ids of an array, or of a contiguous copy of a tensor. Raises
        InvalidArgumentError if it can't be ids.
        """
        if _is_of_torch(array):
            array = array.contiguous()  # type: ignore[attr-defined]
        address, shape, device = _described("ids", array, "int64")
        return cls(array, address, shape, device, _stream_of(array))

    def rows(self, dim: int, out: Any) -> tuple[Any, int]:
        """Returns `out`, or a new array if it is None, for the ids' rows of `dim` floats, and its
        address.
        """
        shape = (*self.shape, dim)
        if out is None:
            out = self._new_rows(shape)
        elif not is_on_device(out):
            raise InvalidArgumentError(
                f"out must be on {self.device}, as ids are, got {type(out).__name__} of the host"
            )
        return out, _address("out", out, self, shape, "float32")

    def gradients(
        self, grads: OnDevice, dim: int, bags: OnDevice | None
    ) -> tuple[OnDevice, tuple[int, int, int]]:
        """Returns `grads`, or a contiguous copy, and the core's arguments: its address, its
        number of rows, and the address of `bags` (0 for None).

        grads: a row of `dim` floats for each id, or for each bag.
        bags: int64 of the ids' shape, the number of each id's bag.
        """
        if _is_of_torch(grads):
            grads = grads.detach().contiguous()  # type: ignore[attr-defined]
        shape = self.shape if bags is None else _described("grads", grads, "float32")[1][:1]
        address = _address("grads", grads, self, (*shape, dim), "float32")
        numbers = 0 if bags is None else _address("bags", bags, self, self.shape)
        return grads, (address, prod(shape), numbers)

    def _new_rows(self, shape: tuple[int, ...]) -> Any:
        if _is_of_torch(self.array):
            torch = sys.modules["torch"]
            return torch.empty(shape, dtype=torch.float32, device=self.array.device)  # type: ignore[attr-defined]
        return DeviceArray.empty(shape, np.float32, self.device)


def _is_of_torch(array: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _stream_of(array: OnDevice) -> int:
    if not _is_of_torch(array):
        return 0
    return int(sys.modules["torch"].cuda.current_stream(array.device).cuda_stream)  # type: ignore[attr-defined]


def _address(
    argument: str, array: OnDevice, ids: IdsOnDevice, shape: tuple[int, ...], dtype: str = "int64"
) -> int:
    """Returns an array's address. Raises InvalidArgumentError if shape, dtype or GPU are wrong."""
    address, got, device = _described(argument, array, dtype)
    if got != shape or device != ids.device:
        raise InvalidArgumentError(
            f"{argument} must be {dtype} of shape {shape} on {ids.device}, as ids are, got shape "
            f"{got} on {device}"
        )
    return address


def _described(argument: str, array: OnDevice, dtype: str) -> tuple[int, tuple[int, ...], str]:
    """Returns an array's address, shape and device. Raises InvalidArgumentError if its dtype isn't
    `dtype`.
    """
    try:
        address, shape, letter, bits, kind, number = _core.described(array)
    except TypeError:
        raise InvalidArgumentError(
            f"{argument} must be a C-contiguous array of {dtype}, got {type(array).__name__} of "
            f"{getattr(array, 'dtype', 'no dtype')} and shape {tuple(getattr(array, 'shape', ()))}"
        ) from None
    got = {"i": "int", "u": "uint", "f": "float"}.get(letter, letter) + str(bits)
    if got != dtype:
        raise InvalidArgumentError(f"{argument} must be {dtype}, got {got}")
    return address, shape, EMULATED if kind == EXTENSION else f"cuda:{number}"


def check_same_gpu(name: str, ids: IdsOnDevice, gpu: str) -> None:
    """Raises InvalidArgumentError if the ids are on another GPU than the rows."""
    rows_gpu = full_name(gpu)
    if ids.device != rows_gpu:
        raise InvalidArgumentError(
            f"ids are on {ids.device}, and {name} has its rows on {rows_gpu}; move them there"
        )
