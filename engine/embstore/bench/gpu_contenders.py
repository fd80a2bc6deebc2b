"""Contenders on a GPU: each has `rows` rows there, looks up batches of them, and trains them."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

import embstore as es
from embstore.bench.contenders import (
    Ids,
    Rows,
    adagrad,
    row_bytes,
    scrambled_keys,
    torch_adagrad,
)

SERVING, TRAINING, STEP = OPERATIONS = (
    "look-up to serve",
    "look-up to train",
    "look-up + Adagrad",
)
_FILLED_AT_ONCE = 250_000


class GpuContender(Protocol):
    """A table on a GPU. Ranks 0..rows-1 stand for keys, most popular first."""

    name: str

    def work(self, operation: str, batches: Sequence[Ids], grads: Rows) -> Any:
        """Returns a function that does the operation on each batch of ranks, and returns when the
        GPU has finished. Ids and gradients are copied to the GPU before.
        """

    def close(self) -> None: ...


class EmbstoreOnGpu:
    """A variable with an HBM tier of rows_in_hbm rows, and DRAM for the rest."""

    name = "embstore"

    def __init__(self, rows: int, rows_in_hbm: int, dim: int, device: str, seed: int) -> None:
        is_whole = rows_in_hbm >= rows
        tier_rows = [rows_in_hbm] if is_whole else [rows_in_hbm, rows]
        self._dim, self._device = dim, device
        self._keys = scrambled_keys(rows, seed)
        self._variable = es.get_embedding_variable(
            "bench",
            embedding_dim=dim,
            initializer=es.initializers.Ones(),
            optimizer=adagrad(),
            ev_option=es.EmbeddingVariableOption(
                storage_option=es.StorageOption(
                    es.StorageType.HBM if is_whole else es.StorageType.HBM_DRAM,
                    storage_size=[row_bytes(dim) * held for held in tier_rows],
                    device=device,
                )
            ),
        )
        # Trains every key once, the most popular last, so that these are the most recent.
        for part in np.array_split(self._keys[::-1], max(1, rows // _FILLED_AT_ONCE)):
            zeros = np.zeros((part.size, dim), np.float32)
            self._variable.apply_gradients(
                es.DeviceArray(part, device), es.DeviceArray(zeros, device)
            )
        self._variable.drain()

    def work(self, operation: str, batches: Sequence[Ids], grads: Rows) -> Any:
        ids = [es.DeviceArray(self._keys[ranks], self._device) for ranks in batches]
        out = es.DeviceArray.empty(grads.shape, np.float32, self._device)
        on_gpu = es.DeviceArray(grads, self._device)
        variable = self._variable

        def run() -> None:
            for batch in ids:
                variable.lookup(batch, train=operation != SERVING, out=out)
                if operation == STEP:
                    variable.apply_gradients(batch, on_gpu)
            variable.synchronize()

        return run

    def close(self) -> None:
        self._variable.close()


class TorchOnGpu:
    """nn.EmbeddingBag(sparse=True) with one id in each bag, and torch.optim.Adagrad. Ids are dense
    and aren't hashed, and all rows are in HBM."""

    name = "PyTorch"

    def __init__(self, rows: int, dim: int, device: str, seed: int) -> None:
        import torch

        self._torch, self._device = torch, device
        self._bag = torch.nn.EmbeddingBag(rows, dim, sparse=True, mode="sum", device=device)
        self._optimizer = torch_adagrad(self._bag)
        # Rows lie in random order of popularity, as for all contenders.
        self._places = np.random.default_rng(seed).permutation(rows)

    def work(self, operation: str, batches: Sequence[Ids], grads: Rows) -> Any:
        torch, bag, optimizer = self._torch, self._bag, self._optimizer
        ids = [torch.from_numpy(self._places[ranks]).to(self._device) for ranks in batches]
        offsets = torch.arange(len(grads), device=self._device)
        on_gpu = torch.from_numpy(grads).to(self._device)

        def run() -> None:
            for batch in ids:
                if operation != STEP:
                    with torch.no_grad():
                        bag(batch, offsets)
                    continue
                optimizer.zero_grad()
                bag(batch, offsets).backward(on_gpu)
                optimizer.step()
            if self._device != "cpu":  # tests use the CPU
                torch.cuda.synchronize(self._device)

        return run

    def close(self) -> None:
        del self._bag, self._optimizer


class CopyOnGpu:
    """Copies of an array to another in the GPU's memory, which measure its bandwidth."""

    name = "copy"

    def __init__(self, size_bytes: int, device: str) -> None:
        import torch

        self._torch, self._device = torch, device
        self._from = torch.zeros(size_bytes // 4, device=device)
        self._to = torch.empty_like(self._from)
        self.bytes_moved = 2 * self._from.numel() * 4  # read and written

    def run(self) -> None:
        self._to.copy_(self._from)
        if self._device != "cpu":
            self._torch.cuda.synchronize(self._device)


def torch_on(device: str) -> str | None:
    """Returns why PyTorch can't be compared on the device; None if it can."""
    if device == "emulated":
        return "it knows no emulated GPU"
    if importlib.util.find_spec("torch") is None:
        return "not installed"
    import torch

    return None if torch.cuda.is_available() else "the installed PyTorch has no CUDA"


def other_engines() -> dict[str, str]:
    """Returns, for each other GPU engine, why it isn't compared."""
    dynamicemb = "not installed"
    if importlib.util.find_spec("dynamicemb") is not None:
        dynamicemb = "installed, but this benchmark doesn't run it: its calls were tried on no GPU"
    return {
        "dynamicemb": dynamicemb,
        "HierarchicalKV": "a C++ library that has no Python package; its own benchmark is "
        "merlin_hashtable_benchmark",
    }
