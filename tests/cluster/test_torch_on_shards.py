"""PyTorch modules with rows in other processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sharded import local_and_sharded

import embstore as es
from embstore.cluster.server.handle import ServerHandle

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'embstore[torch]'")

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("ray")]


@pytest.fixture
def called_methods(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The methods of shards that are called through Ray, which takes a millisecond each; rows use
    other connections.
    """
    methods: list[str] = []
    call = ServerHandle.call

    def counted(self: ServerHandle, table: int, method: str, *arguments: Any) -> Any:
        methods.append(method)
        return call(self, table, method, *arguments)

    monkeypatch.setattr(ServerHandle, "call", counted)
    return methods


def step(layer: Any, optimizer: es.torch.Optimizer) -> None:
    layer(torch.tensor([[1, 7], [7, -3]])).pow(2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_steps_ask_shards_for_rates_and_steps_only_after_a_restore(
    tmp_path: Path, called_methods: list[str]
) -> None:
    with local_and_sharded(2, tmp_path) as both:
        layers = [es.torch.Embedding(var) for var in both]
        optimizers = [es.torch.Optimizer(layer) for layer in layers]
        here, there = both

        def steps(count: int) -> None:
            for _ in range(count):
                for layer, optimizer in zip(layers, optimizers, strict=True):
                    step(layer, optimizer)

        steps(1)
        called_methods.clear()
        steps(3)
        assert called_methods == []
        for var, optimizer in zip(both, optimizers, strict=True):
            es.save(tmp_path / f"saved-{id(var)}", [var], optimizer.global_step)
            optimizer.param_groups[0]["lr"] = 0.5
        steps(1)
        called_methods.clear()
        steps(1)
        assert called_methods == []
        for var in both:
            es.restore(tmp_path / f"saved-{id(var)}", [var])
        steps(1)
        assert optimizers[1].param_groups[0]["lr"] == optimizers[0].param_groups[0]["lr"] != 0.5
        ids = np.array([1, 7, -3])
        np.testing.assert_array_equal(there.get_version(ids), here.get_version(ids))
        np.testing.assert_array_equal(there.lookup(ids), here.lookup(ids))
