"""Graphs over embedding variables: what a session computes, trains and refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import embstore as es
from embstore import graph

IDS = np.array([[3, 1, 3], [7, 1, 2]], np.int64)


@pytest.fixture
def session() -> Iterator[graph.Session]:
    with graph.Session() as session:
        yield session


def random_variable(name: str = "var", dim: int = 4) -> graph.GraphVariable:
    return graph.GraphVariable(name, dim, initializer=es.initializers.RandomNormal(seed=1))


def test_gradients_are_those_of_torch(session: graph.Session) -> None:
    torch = pytest.importorskip("torch")
    scale = np.random.default_rng(0).standard_normal((2, 1, 4)).astype(np.float32)

    def loss_of(rows: Any, part: Any, scale: Any, lib: Any, **axis_1: int) -> Any:
        mixed = lib.square(rows * scale - 0.5) + rows * 3.0 - scale * scale
        mean = lib.mean(mixed, **axis_1)
        return lib.sum(mean * mean) + lib.mean(1.0 - part)

    class Ours:
        square, sum, mean = graph.square, graph.reduce_sum, graph.reduce_mean

    variable = random_variable()
    rows = graph.embedding_lookup(variable, IDS)
    part = graph.embedding_lookup(variable, IDS[0])
    both = graph.concat([part, graph.cast(part, np.float32)], axis=1)
    loss = loss_of(rows, both, graph.as_tensor(scale), Ours, axis=1)
    ((gradient, _),) = graph.Trainer(es.optimizers.SGD(1.0)).compute_gradients(loss)
    session.run(graph.Initialize())
    seen_rows, seen_part, seen_loss, seen_gradient = session.run([rows, part, loss, gradient])

    torch_rows = torch.tensor(seen_rows, requires_grad=True)
    torch_part = torch.tensor(seen_part, requires_grad=True)
    torch_both = torch.cat([torch_part, torch_part], dim=1)
    torch_loss = loss_of(torch_rows, torch_both, torch.tensor(scale), torch, dim=1)
    torch_loss.backward()
    np.testing.assert_allclose(seen_loss, torch_loss.item(), rtol=1e-6)
    expected = np.concatenate([torch_rows.grad.reshape(-1, 4), torch_part.grad.reshape(-1, 4)])
    np.testing.assert_allclose(seen_gradient, expected, rtol=1e-5, atol=1e-6)


def test_a_training_run_gives_the_values_of_before(session: graph.Session) -> None:
    variable = graph.GraphVariable("var", 3, initializer=es.initializers.Ones())
    rows = graph.embedding_lookup(variable, [5, 5, 6])
    train = graph.Trainer(es.optimizers.SGD(0.5)).minimize(graph.reduce_sum(rows))
    session.run(graph.Initialize())
    fetched = session.run({"rows": rows, "train": (train,)})
    assert (fetched["rows"] == 1).all()
    assert fetched["train"] == (None,)
    assert session.run(rows)[:, 0].tolist() == [0.0, 0.0, 0.5]
    assert session.run(variable.total_count()).tolist() == [2, 3]


def test_a_global_step_counts_trainings_and_is_the_version(session: graph.Session) -> None:
    variable = random_variable()
    step = graph.GlobalStep()
    loss = graph.reduce_sum(graph.embedding_lookup(variable, [1]))
    train = graph.Trainer(es.optimizers.SGD(0.5)).minimize(loss, global_step=step)
    session.run(graph.Initialize())
    for _ in range(3):
        session.run(train)
    assert session.run(step) == 3
    assert session.variable(variable).get_version([1]).tolist() == [2]


def test_placeholders_are_fed(session: graph.Session) -> None:
    variable = graph.GraphVariable("var", 3, initializer=es.initializers.Ones())
    ids = graph.Placeholder(np.int64, [None], "ids")
    rows = graph.embedding_lookup(variable, ids)
    session.run(graph.Initialize())
    assert session.run(rows, {ids: [1, 2]}).shape == (2, 3)
    with pytest.raises(es.errors.InvalidArgumentError, match="'ids' is not in feed_dict"):
        session.run(rows)


def test_sessions_have_rows_of_their_own() -> None:
    variable = graph.GraphVariable("var", 3, initializer=es.initializers.Ones())
    rows = graph.embedding_lookup(variable, [1])
    train = graph.Trainer(es.optimizers.SGD(0.5)).minimize(graph.reduce_sum(rows))
    init = graph.Initialize()
    with graph.Session() as one, graph.Session() as other:
        one.run(init)
        other.run(init)
        one.run(train)
        assert (one.run(rows) == 0.5).all()
        assert (other.run(rows) == 1).all()
        one.run(init)
        assert (one.run(rows) == 1).all()


def test_a_graph_may_be_deep(session: graph.Session) -> None:
    variable = graph.GraphVariable("var", 1, initializer=es.initializers.Zeros())
    value = graph.embedding_lookup(variable, [1])
    for _ in range(3000):
        value = value + 1.0
    ((gradient, _),) = graph.Trainer(es.optimizers.SGD(1.0)).compute_gradients(value)
    session.run(graph.Initialize())
    assert session.run([value, gradient]) == [3000, 1]


def test_what_cannot_be_run_is_refused_in_words(session: graph.Session) -> None:
    def refused(match: str) -> Any:
        return pytest.raises(es.errors.InvalidArgumentError, match=match)

    variable = random_variable()
    rows = graph.embedding_lookup(variable, [1])
    loss = graph.reduce_sum(rows)
    sgd = graph.Trainer(es.optimizers.SGD(1.0))
    with refused("no rows in this session"):
        session.run(rows)
    session.run(graph.Initialize())
    with refused("fetches must be"):
        session.run("rows")
    with refused("loss isn't computed from the rows of a variable"):
        sgd.compute_gradients(graph.as_tensor(1.0))
    with refused("loss isn't computed from other"):
        sgd.compute_gradients(loss, [random_variable("other")])
    with refused("compute_gradients gave"):
        sgd.apply_gradients([(rows, variable)])  # type: ignore[list-item]
    train = sgd.minimize(loss)
    with refused("initialized before apply_gradients"):
        session.run(train)
    with refused("trained by SGD"):
        graph.Trainer(es.optimizers.Adagrad(1.0)).minimize(loss)
    with refused("variable must be"):
        graph.embedding_lookup("var", [1])  # type: ignore[arg-type]
    with refused("target and graph"):
        graph.Session("grpc://elsewhere")
    session.close()
    with pytest.raises(es.errors.ClosedError):
        session.run(rows)
