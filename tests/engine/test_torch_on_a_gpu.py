"""PyTorch modules whose ids, rows and gradients stay on a GPU train as those on the CPU do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from engine_storage import MakeVariable
from exports import assert_same

import embstore as es

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU that PyTorch can use"
)

DIM = 8
ON_GPU = es.StorageOption(
    es.StorageType.HBM_DRAM, storage_size=[64 * DIM * 8, 1 << 20], device="cuda:0"
)


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("gathers", [True, False])
@pytest.mark.parametrize("padding_idx", [None, 3])
def test_modules_train_the_same_rows_on_a_gpu_and_on_the_cpu(
    make_variable: MakeVariable, padding_idx: int | None, gathers: bool, partitions: int
) -> None:
    random = np.random.default_rng(1)
    on_gpu = make_variable(name="gpu", storage=ON_GPU, dim=DIM, partition_num=partitions)
    on_cpu = make_variable(name="cpu", dim=DIM)
    assert on_gpu.gpu == "cuda:0"
    models = [
        (es.torch.Embedding(variable, padding_idx=padding_idx), device)
        for variable, device in ((on_gpu, "cuda"), (on_cpu, "cpu"))
    ]
    optimizers = [es.torch.Optimizer(model) for model, _ in models] if gathers else []
    for _ in range(20):
        ids = torch.from_numpy(np.minimum(*random.integers(0, 100, (2, 50))))
        weights = torch.from_numpy(random.normal(size=(50, DIM)).astype(np.float32))
        read: list[Any] = []
        for model, device in models:
            rows = model(ids.to(device))
            assert rows.device.type == device
            (rows * weights.to(device)).sum().backward()
            read.append(rows.detach().cpu())
        assert torch.equal(*read)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert_same(on_gpu.export(), on_cpu.export())


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("gathers", [True, False])
def test_a_warm_step_never_waits_for_the_gpu(
    make_variable: MakeVariable, gathers: bool, partitions: int
) -> None:
    variable = make_variable(name="gpu", storage=ON_GPU, dim=DIM, partition_num=partitions)
    model = es.torch.Embedding(variable, padding_idx=3)
    bags = es.torch.EmbeddingBag(variable, padding_idx=4)
    other = make_variable(name="other", storage=ON_GPU, dim=DIM, partition_num=partitions)
    bags_alone = es.torch.EmbeddingBag(other, padding_idx=4)
    optimizer = es.torch.Optimizer([model, other]) if gathers else None
    ids = torch.arange(50, device="cuda")
    offsets = torch.tensor([0, 20, 20], device="cuda")

    def step() -> None:
        (model(ids).sum() + bags(ids, offsets).sum() + bags_alone(ids, offsets).sum()).backward()
        if optimizer is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    step()
    variable.drain()
    other.drain()
    for _ in range(3):
        step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
