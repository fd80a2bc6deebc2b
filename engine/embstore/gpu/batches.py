"""Batches of ids in a GPU's memory: what is known of them, and the arrays for their rows.

An array is a `DeviceArray`, a PyTorch tensor, or whatever else speaks DLPack and lies on a GPU.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
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
    """An array that speaks DLPack, in the memory of a GPU."""

    def __dlpack__(self) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, int]: ...


def is_on_device(array: object) -> TypeGuard[OnDevice]:
    """Whether it is an array on a GPU; numpy's and those of the host's memory aren't."""
    if isinstance(array, np.ndarray):
        return False
    device_of = getattr(array, "__dlpack_device__", None)
    return device_of is not None and int(device_of()[0]) in (CUDA, EXTENSION)


def to_host(argument: str, array: OnDevice) -> NDArray[Any]:
    """A copy of it, when its stream is through."""
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
    """Returns ids as an array here, of their shape; those on a GPU when their stream is through."""
    return checks.ids(to_host("ids", ids) if is_on_device(ids) else ids)


@dataclass(frozen=True)
class BatchConditions:
    """What is known of a batch of gradients on its GPU alone: arrays of int64 there."""

    kept: OnDevice | None = None  # of each id: 0 leaves it and its gradients out
    refused: OnDevice | None = None  # one: the number of a reason, from 1; 0: none
    reasons: tuple[str, ...] = ()  # why it may be refused: messages of InvalidArgumentErrors
    # One: not 0 leaves the batch out. It counts as an apply that changes nothing, and is no error.
    left_out: OnDevice | None = None

    def addresses(self, ids: IdsOnDevice) -> tuple[int, int, int]:
        """Those of `kept`, `refused` and `left_out`, 0 for none."""
        return (
            0 if self.kept is None else _address("kept", self.kept, ids, ids.shape),
            0 if self.refused is None else _address("refused", self.refused, ids, (1,)),
            0 if self.left_out is None else _address("left_out", self.left_out, ids, (1,)),
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
        """Of a tensor, or a contiguous copy. Raises InvalidArgumentError where they are no ids."""
        if _is_of_torch(array):
            array = array.contiguous()  # type: ignore[attr-defined]
        address, shape, device = _described("ids", array, "int64")
        return cls(array, address, shape, device, _stream_of(array))

    def rows(self, dim: int, out: Any) -> tuple[Any, int]:
        """`out`, or a new array where it is None, for the rows of `dim` floats; and its address."""
        shape = (*self.shape, dim)
        if out is None:
            out = self._new_rows(shape)
        elif not is_on_device(out):
            raise InvalidArgumentError(
                f"out must be on {self.device}, as ids are, got {type(out).__name__} of the host"
            )
        return out, _address("out", out, self, shape, "float32")

    def gradients(self, grads: OnDevice, dim: int) -> tuple[OnDevice, int]:
        """`grads`, or a contiguous copy, with a row of `dim` floats for each id; its address."""
        if _is_of_torch(grads):
            grads = grads.detach().contiguous()  # type: ignore[attr-defined]
        return grads, _address("grads", grads, self, (*self.shape, dim), "float32")

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
    """Of an array of that shape beside the ids; raises InvalidArgumentError for any other."""
    address, got, device = _described(argument, array, dtype)
    if got != shape or device != ids.device:
        raise InvalidArgumentError(
            f"{argument} must be {dtype} of shape {shape} on {ids.device}, as ids are, got shape "
            f"{got} on {device}"
        )
    return address


def _described(argument: str, array: OnDevice, dtype: str) -> tuple[int, tuple[int, ...], str]:
    """Address, shape and device."""
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
    """Raises InvalidArgumentError where the ids are on another GPU than the rows."""
    own = full_name(gpu)
    if ids.device != own:
        raise InvalidArgumentError(
            f"ids are on {ids.device}, and {name} has its rows on {own}; move them there"
        )
