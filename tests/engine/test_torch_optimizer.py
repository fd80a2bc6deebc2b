"""`embstore.torch.Optimizer`: rows are trained as torch.optim trains a dense embedding's weight."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from engine_storage import GPU, MakeVariable
from exports import assert_same

import embstore as es
from embstore.errors import InvalidArgumentError, StoreFullError

torch = pytest.importorskip("torch")

from embstore.torch.rows import GradientPart, Refusal, apply_all  # noqa: E402

KEYS = 20
DIM = 5
BATCHES = [[[1, 2, 1], [3, 1, 4]], [[5, 5, 5], [1, 2, 3]], [[6, 7, 8], [8, 7, 1]]]  # ids

RULES: dict[str, tuple[es.optimizers.Optimizer, Callable[[Any], Any]]] = {
    "SGD": (es.optimizers.SGD(0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "Adagrad": (
        es.optimizers.Adagrad(0.1),
        lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1, eps=0.0),
    ),
}


class Model(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Two embeddings and a dense layer; `both` is looked up twice."""

    def __init__(self, one: Any, both: Any) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.one, self.both = one, both
        self.linear = torch.nn.Linear(DIM, 1)

    def forward(self, ids: Any) -> Any:
        rows = self.one(ids) * self.both(ids) + self.both(ids // 2)
        return self.linear(torch.tanh(rows)).squeeze(-1)


class Training:
    """A model with its optimizers, over variables or over torch.nn.Embedding."""

    def __init__(self, model: Any, optimizers: list[Any]) -> None:
        self.model, self.optimizers = model, optimizers

    def backward(self, ids: Any, scale: Callable[[Any], Any] = lambda loss: loss) -> None:
        # The loss is a sum, so gradients of micro-batches add up to that of the whole batch.
        scale((self.model(torch.tensor(ids)) - 1).pow(2).sum()).backward()

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def weights(self) -> list[Any]:
        tables = [
            embedding.weight.detach().numpy()
            if isinstance(embedding, torch.nn.Embedding)
            else embedding.variable.lookup(np.arange(KEYS), train=True)
            for embedding in (self.model.one, self.model.both)
        ]
        return [*tables, self.model.linear.weight.detach().numpy()]


@pytest.fixture(params=RULES)
def pair(request: pytest.FixtureRequest, make_variable: MakeVariable) -> tuple[Training, Training]:
    """Returns our training and PyTorch's, which start with the same weights."""
    rule, make_theirs = RULES[request.param]
    ours, theirs = [], []
    for seed in (1, 2):
        table = es.initializers.RandomNormal(stddev=1.0, seed=seed)((KEYS, DIM))
        init = es.InitializerOption(es.initializers.Constant(table), default_value_dim=KEYS)
        ours.append(es.torch.Embedding(make_variable(dim=DIM, init=init, optimizer=rule)))
        theirs.append(torch.nn.Embedding(KEYS, DIM, _weight=torch.tensor(table)))
    model, twin = Model(*ours), Model(*theirs)
    dense = torch.optim.SGD(es.torch.dense_parameters(model), lr=0.05)
    return (
        Training(model, [dense, es.torch.Optimizer(model)]),
        Training(
            twin,
            [
                torch.optim.SGD(twin.linear.parameters(), lr=0.05),
                make_theirs([twin.one.weight, twin.both.weight]),
            ],
        ),
    )


Pair = tuple[Training, Training]


def assert_alike(ours: Training, theirs: Training) -> None:
    for got, wanted in zip(ours.weights(), theirs.weights(), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)


def versions(training: Training) -> list[list[int]]:
    return [
        layer.variable.get_version(np.arange(9)).tolist()
        for layer in (training.model.one, training.model.both)
    ]


def test_gradients_of_micro_batches_are_applied_at_the_step_as_one_batch(pair: Pair) -> None:
    ours, theirs = pair
    before = ours.weights()
    for batch in BATCHES:
        for micro_batch in batch:
            ours.backward(micro_batch)
        np.testing.assert_array_equal(ours.weights()[0], before[0])
        theirs.backward([*batch[0], *batch[1]])
        ours.step()
        theirs.step()
        assert_alike(ours, theirs)
        before = ours.weights()
    # Three steps; each row has the version of the last one that it was in.
    assert versions(ours)[0] == [-1, 2, 1, 1, 0, 1, 2, 2, 2]


@pytest.mark.parametrize("looked_at", [False, True])
def test_every_occurrence_counts_once_however_gradients_were_gathered(
    pair: Pair, looked_at: bool
) -> None:
    ours, _ = pair
    for micro_batch in BATCHES[0]:
        ours.backward(micro_batch)
        if looked_at:
            assert all(p.grad is not None for p in ours.model.parameters())
    ours.step()
    assert ours.model.one.variable.get_frequency(np.arange(5)).tolist() == [0, 3, 1, 1, 1]


def test_looking_at_a_gradient_changes_no_bit(make_variable: MakeVariable) -> None:
    # 2^25 + 1 is no float32: the order of additions shows.
    gradients = [2.0**25, 1.0, -(2.0**25), 3.0]
    rows = []
    for look_after in ([], [0], [1, 3], [0, 1, 2, 3]):
        var = make_variable(optimizer=es.optimizers.SGD(1.0))
        layer = es.torch.Embedding(var)
        optimizer = es.torch.Optimizer(layer)
        for i, gradient in enumerate(gradients):
            (layer(torch.tensor([7])).sum() * gradient).backward()
            if i in look_after:
                grad = layer.rows.grad
                assert grad is not None
                assert grad.shape == (i + 1, 3)  # a row for each look-up, the sum in the first
                assert not grad[1:].any()
        optimizer.step()
        rows.append(var.lookup([7]))
    for row in rows[1:]:
        np.testing.assert_array_equal(row, rows[0])


@pytest.mark.parametrize("foreach", [False, True])
def test_clipping_sees_dense_parameters_and_rows_together(pair: Pair, foreach: bool) -> None:
    ours, theirs = pair
    for batch in BATCHES:
        norms = []
        for training in pair:
            for micro_batch in batch:
                training.backward(micro_batch)
            norm = torch.nn.utils.clip_grad_norm_(training.model.parameters(), 0.7, foreach=foreach)
            norms.append(norm.item())
            training.step()
        assert norms[0] == pytest.approx(norms[1], rel=1e-5)
        assert norms[0] > 0.7
        assert_alike(ours, theirs)


def test_clipping_by_value_sees_the_sum_of_a_keys_gradients(pair: Pair) -> None:
    ours, theirs = pair
    for training in pair:
        training.backward([1, 1, 2])
        training.backward([1, 3, 2])
        torch.nn.utils.clip_grad_value_(training.model.parameters(), 0.3)
        training.step()
    assert_alike(ours, theirs)


@pytest.mark.parametrize("unscale_before", [False, True])
def test_a_scaler_leaves_out_steps_with_infinite_gradients_and_unscales_others(
    pair: Pair, unscale_before: bool
) -> None:
    ours, theirs = pair
    scales = []
    for training in pair:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=2)
        for i, batch in enumerate(BATCHES * 2):
            before = training.weights()
            spoilt = float("inf") if i in (1, 4) else 1.0

            def scale(loss: Any, scaler: Any = scaler, by: float = spoilt) -> Any:
                return scaler.scale(loss) * by

            for micro_batch in batch:
                training.backward(micro_batch, scale)
            if unscale_before:
                for optimizer in training.optimizers:
                    scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(training.model.parameters(), 0.7)
            for optimizer in training.optimizers:
                scaler.step(optimizer)
                optimizer.zero_grad()
            scaler.update()
            scales.append(scaler.get_scale())
            if spoilt != 1.0:
                for got, wanted in zip(training.weights(), before, strict=True):
                    np.testing.assert_array_equal(got, wanted)
    assert scales[:6] == scales[6:]
    assert_alike(ours, theirs)
    assert ours.optimizers[1].global_step == 6


def test_a_step_that_a_scaler_leaves_out_does_not_count_in_the_formula(
    make_variable: MakeVariable,
) -> None:
    """Adam's formula depends on the number of updates."""
    rows = []
    for batches in ([1, None, 2, None, None, 1, 3], [1, 2, 1, 3]):
        var = make_variable(optimizer=es.optimizers.Adam(0.1))
        layer = es.torch.Embedding(var)
        optimizer = es.torch.Optimizer(layer)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=100)
        for ids in batches:
            loss = layer(torch.tensor([1, ids or 7])).pow(2).sum()
            scaler.scale(loss if ids else loss * float("inf")).backward()
            scaler.step(optimizer)
            scaler.update(4.0)
            optimizer.zero_grad()
        assert optimizer.global_step == var.internals.apply_count() == len(batches)
        assert var.get_version([1, 7]).tolist() == [len(batches) - 1, -1]
        rows.append(var.export())
    for column in rows[0].keys() - {"versions"}:
        np.testing.assert_array_equal(rows[0][column], rows[1][column])


def test_rates_are_scheduled(pair: Pair) -> None:
    ours, theirs = pair
    schedulers = [
        torch.optim.lr_scheduler.SequentialLR(
            training.optimizers[1],
            [
                torch.optim.lr_scheduler.LinearLR(training.optimizers[1], 0.5, total_iters=2),
                torch.optim.lr_scheduler.ExponentialLR(training.optimizers[1], 0.5),
            ],
            milestones=[2],
        )
        for training in pair
    ]
    for ids in itertools.chain(*BATCHES):
        for training, scheduler in zip(pair, schedulers, strict=True):
            training.backward(ids)
            training.step()
            scheduler.step()
        assert_alike(ours, theirs)
    group = theirs.optimizers[1].param_groups[0]
    assert [g["lr"] for g in ours.optimizers[1].param_groups] == [group["lr"]] * 2
    ours.step()
    assert ours.model.one.variable.learning_rate == pytest.approx(group["lr"])


def test_a_step_repeats_the_gradients_that_were_not_dropped(pair: Pair) -> None:
    ours, theirs = pair
    for training in pair:
        training.backward(BATCHES[0][0])
        for optimizer in [*training.optimizers, *training.optimizers]:
            optimizer.step()
    assert_alike(ours, theirs)


@pytest.mark.parametrize("drop", ["optimizer", "model", "not to none"])
def test_dropped_gradients_train_nothing(pair: Pair, drop: str) -> None:
    ours, _ = pair
    before = ours.weights()
    ours.backward(BATCHES[0][0])
    if drop == "model":
        ours.model.zero_grad()
    else:
        ours.optimizers[1].zero_grad(set_to_none=drop == "optimizer")
    ours.optimizers[1].step()
    np.testing.assert_array_equal(ours.weights()[0], before[0])
    assert ours.model.one.variable.total_count() == (0, DIM)


@pytest.mark.parametrize(
    "set_to_zeros",
    [
        lambda rows: rows.grad.zero_(),
        lambda rows: rows.grad.data.zero_(),
        lambda rows: setattr(rows, "grad", torch.zeros_like(rows.grad)),
    ],
    ids=["in place", "past autograd", "by others"],
)
def test_gradients_that_are_set_to_zeros_train_nothing(
    pair: Pair, set_to_zeros: Callable[[Any], Any]
) -> None:
    ours, _ = pair
    for _ in range(2):
        ours.backward(BATCHES[0][0])
        set_to_zeros(ours.model.one.rows)
    ours.optimizers[1].step()
    assert ours.model.one.variable.total_count() == (0, DIM)


def test_gradients_that_were_looked_at_in_inference_mode_can_be_clipped_and_applied(
    pair: Pair,
) -> None:
    for training in pair:
        training.backward(BATCHES[0][0])
        with torch.inference_mode():
            for parameter in training.model.parameters():
                parameter.grad.norm()
        torch.nn.utils.clip_grad_norm_(training.model.parameters(), 0.1)
        training.step()
    assert_alike(*pair)


def test_a_backward_that_fails_gathers_nothing(pair: Pair) -> None:
    ours, _ = pair
    rows = ours.model.one(torch.tensor([1]))
    rows.register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        (rows * ours.model.both(torch.tensor([2]))).sum().backward()
    assert ours.model.one.rows.grad is None
    assert ours.model.both.rows.grad is None


def test_a_variable_that_a_step_left_out_has_the_versions_of_its_own_steps(pair: Pair) -> None:
    ours, _ = pair
    rows = ours.optimizers[1]
    ours.model.one(torch.tensor([1])).sum().backward()
    ours.step()
    ours.model.both(torch.tensor([1])).sum().backward()
    ours.step()
    assert [v[1] for v in versions(ours)] == [0, 1]
    rows.global_step = 100
    ours.backward([3])
    ours.step()
    assert versions(ours)[0][3] == 100
    assert rows.global_step == 101


def test_the_closure_is_called_with_gradients(pair: Pair) -> None:
    ours, theirs = pair

    def closure() -> float:
        ours.backward(BATCHES[0][0])
        return 7.0

    assert ours.optimizers[1].step(closure) == 7.0
    theirs.backward(BATCHES[0][0])
    theirs.optimizers[1].step()
    np.testing.assert_allclose(ours.weights()[0], theirs.weights()[0], rtol=2e-5, atol=2e-6)


def test_the_state_goes_on_where_it_was_saved(make_variable: MakeVariable, tmp_path: Path) -> None:
    def start() -> tuple[es.EmbeddingVariable, Any, Any]:
        var = make_variable(name="var", optimizer=es.optimizers.Adam(0.1))
        optimizer = es.torch.Optimizer(var)
        return var, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def train(var: es.EmbeddingVariable, optimizer: Any, scheduler: Any) -> None:
        layer = es.torch.Embedding(var)
        for ids in BATCHES[0]:
            layer(torch.tensor(ids)).pow(2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()

    var, optimizer, scheduler = start()
    train(var, optimizer, scheduler)
    es.save(tmp_path, [var], optimizer.global_step)
    states = optimizer.state_dict(), scheduler.state_dict()
    train(var, optimizer, scheduler)

    other, other_optimizer, other_scheduler = start()
    assert es.restore(tmp_path, [other]) == 2
    other_optimizer.load_state_dict(states[0])
    other_scheduler.load_state_dict(states[1])
    train(other, other_optimizer, other_scheduler)
    assert_same(other.export(), var.export())
    assert other_optimizer.state_dict() == optimizer.state_dict()


def test_a_group_takes_its_state_by_its_name(make_variable: MakeVariable) -> None:
    one, two = make_variable(name="one"), make_variable(name="two")
    saved = es.torch.Optimizer([{"params": one, "lr": 0.5}, {"params": two, "lr": 0.25}])
    other = es.torch.Optimizer([two, one], lr=0.125)
    other.load_state_dict(saved.state_dict())
    other.step()
    assert [(group["name"], group["lr"]) for group in other.param_groups] == [
        ("two", 0.25),
        ("one", 0.5),
    ]
    assert (one.learning_rate, two.learning_rate) == (0.5, 0.25)


def test_the_state_of_other_variables_is_refused_and_changes_nothing(
    make_variable: MakeVariable,
) -> None:
    one, two, three = (make_variable(name=name) for name in ("one", "two", "three"))
    state = es.torch.Optimizer([one, two], lr=0.5).state_dict()
    state["global_step"] = 7
    for of, told in (
        ([one, three], "missing are 'three', not known are 'two'"),
        ([one], "missing are none, not known are 'two'"),
        ([three, two, one], "missing are 'three', not known are none"),
    ):
        other = es.torch.Optimizer(of, lr=0.125)
        before = other.state_dict()
        with pytest.raises(InvalidArgumentError, match=f"state_dict must .*{told}"):
            other.load_state_dict(state)
        assert other.state_dict() == before


def test_the_state_of_a_dense_optimizer_is_refused_and_changes_nothing(
    make_variable: MakeVariable,
) -> None:
    dense = torch.optim.Adam(torch.nn.Linear(3, 1, bias=False).parameters(), lr=0.5)
    other = es.torch.Optimizer(make_variable(), lr=0.125)
    before = other.state_dict()
    for state in (dense.state_dict(), {}, {**before, "global_step": -1}):
        with pytest.raises(InvalidArgumentError, match=r"state_dict.*global_step"):
            other.load_state_dict(state)
        assert other.state_dict() == before


def test_a_state_without_names_is_taken_by_position(make_variable: MakeVariable) -> None:
    one, two = make_variable(name="one"), make_variable(name="two")
    state = es.torch.Optimizer(
        [{"params": one, "lr": 0.5}, {"params": two, "lr": 0.25}]
    ).state_dict()
    for group in state["param_groups"]:
        del group["name"]
    other = es.torch.Optimizer([two, one])
    other.load_state_dict(state)
    assert [(group["name"], group["lr"]) for group in other.param_groups] == [
        ("two", 0.5),
        ("one", 0.25),
    ]


def test_a_rate_that_was_restored_goes_into_the_group(make_variable: MakeVariable) -> None:
    var = make_variable()
    optimizer = es.torch.Optimizer(var, lr=0.4)
    assert var.learning_rate == 0.4
    var.learning_rate = 0.2
    optimizer.step()
    assert optimizer.param_groups[0]["lr"] == 0.2
    optimizer.param_groups[0]["lr"] = torch.tensor(0.25)
    optimizer.step()
    assert var.learning_rate == 0.25


def test_an_error_of_a_variable_comes_out_of_the_step(make_variable: MakeVariable) -> None:
    var = make_variable(storage=es.StorageOption(storage_size=[32]))
    layer = es.torch.Embedding(var)
    optimizer = es.torch.Optimizer(layer)
    layer(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(StoreFullError):
        optimizer.step()
    assert var.total_count() == (0, 3)


def gradient(device: str = "cpu", refusal: Any = None) -> GradientPart:
    ids, grads = torch.arange(2, device=device), torch.ones(2, 3, device=device)
    return GradientPart(0, ids, grads, refusal=refusal)


def test_an_error_on_a_gpu_stops_no_variable_on_the_host(
    make_variable: MakeVariable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise StoreFullError("users: is full")

    # Stands in for a GPU that PyTorch could use.
    monkeypatch.setattr("embstore.torch.rows.ApplyStep", SimpleNamespace(of=lambda *_: None))
    monkeypatch.setattr("embstore.torch.rows.apply_together", fail)
    users, items, ads = (make_variable(name=name) for name in ("users", "items", "ads"))
    refusal = gradient(refusal=torch.tensor([Refusal.OFFSETS]))
    with pytest.raises(StoreFullError, match="users: is full"):
        apply_all([(users, gradient("meta")), (items, refusal), (ads, gradient())])
    assert [variable.total_count()[0] for variable in (items, ads)] == [0, 2]


def test_a_refused_gradient_stops_no_other_variable(make_variable: MakeVariable) -> None:
    users, items = (make_variable(name=name) for name in ("users", "items"))
    refusal = gradient(refusal=torch.tensor([Refusal.OFFSETS]))
    with pytest.raises(InvalidArgumentError, match="users: offsets must start at 0"):
        apply_all([(users, refusal), (items, gradient())])
    assert [variable.total_count()[0] for variable in (users, items)] == [0, 2]


def test_a_step_that_is_left_out_counts_for_all_variables_but_that_of_an_error(
    make_variable: MakeVariable,
) -> None:
    storage = es.StorageOption(es.StorageType.HBM_DRAM, storage_size=[1 << 10, 1 << 20])
    users, items = make_variable(storage=storage), make_variable()
    ids = es.DeviceArray(np.arange(2), device=GPU)
    users.apply_gradients(ids, es.DeviceArray(np.full((2, 3), np.nan, np.float32), device=GPU))
    ids.numpy()  # waits for its stream
    with pytest.raises(InvalidArgumentError, match="grads must be finite"):
        apply_all([(users, gradient()), (items, gradient())], skip=torch.ones(1))
    assert [variable.internals.apply_count() for variable in (users, items)] == [1, 1]


def test_another_optimizer_that_holds_rows_is_refused_before_it_steps(pair: Pair) -> None:
    ours, _ = pair
    other = torch.optim.Adam(ours.model.parameters())
    ours.backward(BATCHES[0][0])
    before = ours.weights()
    with pytest.raises(InvalidArgumentError, match=r"Adam holds Rows.*dense_parameters\(model\)"):
        other.step()
    np.testing.assert_array_equal(ours.weights()[2], before[2])


def test_only_the_newer_of_two_optimizers_over_one_variable_trains_it(
    make_variable: MakeVariable,
) -> None:
    var = make_variable(optimizer=es.optimizers.SGD(1.0))
    layer = es.torch.Embedding(var)
    older, newer = es.torch.Optimizer(layer), es.torch.Optimizer(var)
    before = var.lookup([1])
    layer(torch.tensor([1])).sum().backward()
    with pytest.raises(InvalidArgumentError, match=r"another embstore\.torch\.Optimizer was made"):
        older.step()
    np.testing.assert_array_equal(var.lookup([1]), before)
    newer.step()
    np.testing.assert_array_equal(var.lookup([1]), before - 1)


def test_dense_parameters_are_all_but_rows(pair: Pair) -> None:
    ours, _ = pair
    assert set(es.torch.dense_parameters(ours.model)) == set(ours.model.linear.parameters())
    nothing: Any = None
    with pytest.raises(InvalidArgumentError, match=r"model must be a torch\.nn\.Module, got None"):
        es.torch.dense_parameters(nothing)


def test_an_optimizer_needs_variables_that_can_be_trained(make_variable: MakeVariable) -> None:
    var = make_variable()
    for params in (var, [var, var], es.torch.Embedding(var), [es.torch.EmbeddingBag(var)]):
        assert len(es.torch.Optimizer(params).param_groups) == 1
    with pytest.raises(InvalidArgumentError, match="params has no embedding variable"):
        es.torch.Optimizer(torch.nn.Linear(2, 2))
    for params in (torch.nn.Linear(2, 2).weight, [torch.nn.Linear(2, 2).weight]):
        with pytest.raises(InvalidArgumentError, match="params has no embedding variable"):
            es.torch.Optimizer(params)
    wrong: list[Any] = [3, [3], [torch.ones(2)], {"params": 3}]
    for what in wrong:
        with pytest.raises(InvalidArgumentError, match="params must be a module, a variable"):
            es.torch.Optimizer(what)
    for group in ({"lr": 0.1}, {"params": [var], "momentum": 0.9}):
        with pytest.raises(InvalidArgumentError, match='a group must have "params", and may have'):
            es.torch.Optimizer([group])
    with pytest.raises(InvalidArgumentError, match="learning_rate must be at least 0"):
        es.torch.Optimizer(var, lr=-1)
    optimizer = es.torch.Optimizer(var)
    optimizer.param_groups[0]["lr"] = 10**400  # too large for a float
    with pytest.raises(InvalidArgumentError, match="learning_rate must be a number that a float"):
        optimizer.step()
    with pytest.raises(InvalidArgumentError, match="without an optimizer"):
        es.torch.Optimizer(make_variable(optimizer=None))


def test_an_invalid_group_is_refused(make_variable: MakeVariable) -> None:
    var, other = make_variable(name="var"), make_variable(name="other")
    optimizer = es.torch.Optimizer(var)
    wrong: list[tuple[Any, str]] = [
        (None, "a group must be a dict, got NoneType"),
        ([], "a group must be a dict, got list"),
        ({"lr": 0.1}, 'a group must have "params"'),
        ({"params": None}, "params must be the Rows of one variable"),
        ({"params": 5}, "params must be the Rows of one variable"),
        ({"params": []}, "params must be the Rows of one variable"),
        ({"params": [torch.nn.Parameter(torch.ones(1))]}, "params must be the Rows of one"),
        ({"params": es.torch.Embedding(var).parameters()}, "var has a group already"),
        ({"params": var, "weight_decay": 0.1}, "a group must .*, got 'params', 'weight_decay'"),
    ]
    for group, message in wrong:
        with pytest.raises(InvalidArgumentError, match=f"param_group: {message}"):
            optimizer.add_param_group(group)
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": es.torch.Embedding(other).parameters(), "lr": 0.25})
    assert [group["name"] for group in optimizer.param_groups] == ["var", "other"]
    assert other.learning_rate == 0.25


@pytest.mark.parametrize(
    "rate",
    ["x", None, float("nan"), -1.0, 10**400, True, torch.ones(2), torch.tensor(1j)],
    ids=lambda rate: repr(rate)[:20],
)
def test_a_rate_that_no_variable_can_have_is_refused(
    make_variable: MakeVariable, rate: Any
) -> None:
    """None stands for the variable's own rate, so a new group may have it."""
    var, other = make_variable(name="var"), make_variable(name="other")
    optimizer = es.torch.Optimizer([var, other], lr=0.5)
    group = {"params": [es.torch.Embedding(make_variable(name="new")).rows], "lr": rate}
    if rate is not None:
        with pytest.raises(InvalidArgumentError, match="lr of the group of new: learning_rate"):
            optimizer.add_param_group(group)
    state = optimizer.state_dict()
    state["param_groups"][1]["lr"] = rate
    with pytest.raises(InvalidArgumentError, match="lr of the group of other: learning_rate"):
        optimizer.load_state_dict(state)
    optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = 0.25, rate
    with pytest.raises(InvalidArgumentError, match="lr of the group of other: learning_rate"):
        optimizer.step()
    assert (var.learning_rate, other.learning_rate) == (0.5, 0.5)


@pytest.mark.parametrize("untrainable", ["by its rate", "without an optimizer"])
def test_an_optimizer_that_cant_be_made_takes_no_variable_over(
    make_variable: MakeVariable, untrainable: str
) -> None:
    var = make_variable(name="var", optimizer=es.optimizers.SGD(0.1))
    other = make_variable(
        name="other", optimizer=None if "optimizer" in untrainable else es.optimizers.Adagrad(0.1)
    )
    rate = {"lr": -1.0} if other.optimizer is not None else {}
    with pytest.raises(InvalidArgumentError, match="learning_rate"):
        es.torch.Optimizer([{"params": var, "lr": 0.5}, {"params": other, **rate}])
    assert var.learning_rate == 0.1
    es.torch.Embedding(var)(torch.tensor([1])).sum().backward()  # trains at once, as before
    assert var.get_version([1]) == [0]


@pytest.mark.parametrize("groups", [None, [5], [{"params": [0]}], [{"lr": 0.5}]])
def test_a_state_without_groups_is_refused(make_variable: MakeVariable, groups: Any) -> None:
    optimizer = es.torch.Optimizer(make_variable())
    state = {**optimizer.state_dict(), "param_groups": groups}
    with pytest.raises(InvalidArgumentError, match=r'state_dict\["param_groups"\] must be groups'):
        optimizer.load_state_dict(state)


@pytest.mark.parametrize(
    "parameters",
    [
        lambda model: model.parameters(),
        lambda model: list(model.parameters()),
        lambda model: [model.one.rows, model.both.rows],
        lambda model: [{"params": model.parameters()}],
        lambda model: {"params": [model.one, model.both]},
    ],
)
def test_an_optimizer_is_made_from_parameters_as_those_of_pytorch_are(
    pair: Pair, parameters: Callable[[Any], Any]
) -> None:
    ours, theirs = pair
    ours.optimizers[1] = es.torch.Optimizer(parameters(ours.model))
    for batch in BATCHES:
        ours.backward(batch[0])
        theirs.backward(batch[0])
        ours.step()
        theirs.step()
        assert_alike(ours, theirs)


def test_groups_of_parameters_may_have_rates_of_their_own(make_variable: MakeVariable) -> None:
    slow, quick = make_variable(name="slow"), make_variable(name="quick")
    groups: list[dict[str, Any]] = [
        {"params": [slow]},
        {"params": es.torch.Embedding(quick).parameters(), "lr": 0.5},
    ]
    optimizer = es.torch.Optimizer(groups, lr=0.125)
    assert (slow.learning_rate, quick.learning_rate) == (0.125, 0.5)
    told = [(group["name"], group["lr"]) for group in optimizer.param_groups]
    assert told == [("slow", 0.125), ("quick", 0.5)]


def test_a_gradient_of_rows_is_only_replaced_by_one_like_it(pair: Pair) -> None:
    ours, _ = pair
    rows = ours.model.one.rows
    ours.backward([3, 1])
    assert rows.grad.shape == (2, DIM)
    with pytest.raises(InvalidArgumentError, match=r"of its own shape, got \(1, 5\)"):
        rows.grad = torch.ones(1, DIM)
    before = ours.model.one.variable.lookup([1, 3], train=True)
    if ours.model.one.variable.optimizer == es.optimizers.SGD(0.1):
        rows.grad = torch.ones(2, DIM)
        ours.step()
        after = ours.model.one.variable.lookup([1, 3], train=True)
        np.testing.assert_allclose(before - after, 0.1, rtol=1e-5)


@pytest.mark.parametrize("norm", [2.0, float("inf")])
def test_a_batch_without_ids_gathers_a_gradient_of_zeros(pair: Pair, norm: float) -> None:
    ours, _ = pair
    rows = ours.model.one.rows
    ours.model.one(torch.empty(0, dtype=torch.int64)).sum().backward()
    assert torch.equal(rows.grad, torch.zeros(1, DIM))
    assert torch.nn.utils.clip_grad_norm_(ours.model.parameters(), 1.0, norm) == 0
    rows.grad = torch.ones(1, DIM)  # for no id
    ours.step()
    assert ours.model.one.variable.total_count() == (0, DIM)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")
@pytest.mark.timeout(60, method="thread")  # a deadlock would never end
def test_a_compiled_step_with_its_backward_pass_trains_the_same_rows(
    make_variable: MakeVariable,
) -> None:
    def trained(wrap: Callable[[Any], Any]) -> dict[str, Any]:
        var = make_variable(dim=DIM)
        torch.manual_seed(0)
        model = torch.nn.Sequential(es.torch.Embedding(var), torch.nn.Linear(DIM, 1))
        rows = es.torch.Optimizer(model)
        dense = torch.optim.SGD(es.torch.dense_parameters(model), lr=0.1)

        def step(ids: Any) -> None:
            for micro_batch in ids.chunk(2):
                model(micro_batch).pow(2).sum().backward()
            for optimizer in (dense, rows):
                optimizer.step()
                optimizer.zero_grad()

        wrapped = wrap(step)
        for first in range(3):
            wrapped(torch.arange(first, first + 6))
        return var.export()

    plain = trained(lambda step: step)
    assert_same(trained(lambda step: torch.compile(step, backend="eager")), plain)
