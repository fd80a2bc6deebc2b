"""The PyTorch modules behave as torch.nn's own, with a variable in the weight's place."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from engine_storage import MakeVariable, Stack, StorageOf
from interpreter import run_python

import embstore as es
from embstore.errors import (
    ClosedError,
    InvalidArgumentError,
    StoreFullError,
    UnsupportedError,
)

torch = pytest.importorskip("torch")

KEYS = 20
DIM = 5


@pytest.fixture
def table() -> Any:
    return torch.from_numpy(es.initializers.RandomNormal(stddev=1.0, seed=2)((KEYS, DIM)))


@pytest.fixture
def var(make_variable: MakeVariable, table: Any) -> es.EmbeddingVariable:
    return make_variable(
        dim=DIM,
        init=es.InitializerOption(es.initializers.Constant(table.numpy()), default_value_dim=KEYS),
    )


class Twin:
    """A torch embedding trained as the variable should be: dense, Adagrad on the touched rows."""

    def __init__(self, table: Any) -> None:
        self.weight = torch.nn.Parameter(table.clone())
        self._optimizer = torch.optim.Adagrad(
            [self.weight], lr=0.1, initial_accumulator_value=0.1, eps=0.0
        )

    def __call__(self, ids: Any) -> Any:
        return torch.nn.functional.embedding(ids, self.weight)

    def step(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad()


def assert_same_rows(var: es.EmbeddingVariable, twin: Twin) -> None:
    np.testing.assert_allclose(
        var.lookup(np.arange(KEYS)), twin.weight.detach().numpy(), rtol=1e-5, atol=1e-6
    )


def test_an_embedding_gives_rows_of_the_ids_shape(var: es.EmbeddingVariable, table: Any) -> None:
    layer = es.torch.Embedding(var)
    for shape in [(), (0,), (4,), (2, 3)]:
        ids = torch.randint(KEYS, shape)
        rows = layer(ids)
        assert rows.requires_grad
        assert rows.dtype == torch.float32
        assert torch.equal(rows.detach(), table[ids])


def test_backward_trains_the_variable_as_torch_trains_a_weight(
    var: es.EmbeddingVariable, table: Any
) -> None:
    layer, twin = es.torch.Embedding(var), Twin(table)
    torch.manual_seed(0)
    for _ in range(5):
        ids = torch.randint(KEYS, (4, 3))  # some of them twice
        weights = torch.randn(4, 3, DIM)
        for embed in (layer, twin):
            (embed(ids) * weights).pow(2).sum().backward()
        twin.step()
        assert_same_rows(var, twin)
    assert var.get_version(np.arange(KEYS)).max() == 4


def test_several_forwards_before_one_backward_are_one_step(
    var: es.EmbeddingVariable, table: Any
) -> None:
    first, second, twin = es.torch.Embedding(var), es.torch.Embedding(var), Twin(table)
    a, b = torch.tensor([1, 2, 3]), torch.tensor([[3, 3], [4, 1]])

    def loss(one: Any, other: Any) -> Any:
        return one(a).pow(2).sum() + other(b).exp().sum() + (one(b).sum(0) * one(a)[:2]).sum()

    loss(first, second).backward()
    loss(twin, twin).backward()
    twin.step()
    assert_same_rows(var, twin)
    assert var.get_version([1, 3, 4, 5]).tolist() == [0, 0, 0, -1]
    assert var.get_frequency([1, 2, 3, 4]).tolist() == [4, 2, 6, 2]


def test_sums_are_in_the_order_of_the_forwards(make_variable: MakeVariable) -> None:
    # 2^25 + 1 is no float32: the order of additions shows.
    gradients = [2.0**25, 1.0, -(2.0**25)]
    one_batch = make_variable(optimizer=es.optimizers.SGD(1.0))
    one_batch.apply_gradients(
        [7, 7, 7], np.repeat(np.array(gradients, np.float32)[:, None], 3, axis=1)
    )
    var = make_variable(optimizer=es.optimizers.SGD(1.0))
    layer = es.torch.Embedding(var)
    sum(layer(torch.tensor([7])).sum() * gradient for gradient in gradients).backward()
    np.testing.assert_array_equal(var.lookup([7]), one_batch.lookup([7]))


def test_every_backward_is_a_step_of_its_own(var: es.EmbeddingVariable, table: Any) -> None:
    layer, twin = es.torch.Embedding(var), Twin(table)
    ids = torch.tensor([1, 2])
    for embed in (layer, twin):
        loss = embed(ids).pow(2).sum()
        loss.backward(retain_graph=True)
        if embed is twin:
            twin.step()
        loss.backward()
    twin.step()
    assert var.get_version([1, 2, 3]).tolist() == [1, 1, -1]
    assert_same_rows(var, twin)


def test_dense_layers_around_an_embedding_get_their_gradients(
    var: es.EmbeddingVariable, table: Any
) -> None:
    torch.manual_seed(1)
    linear = torch.nn.Linear(DIM, 1)
    other = copy.deepcopy(linear)
    layer, twin = es.torch.Embedding(var), Twin(table)
    ids = torch.tensor([5, 6, 5])
    linear(layer(ids)).sum().backward()
    other(twin(ids)).sum().backward()
    twin.step()
    assert torch.equal(linear.weight.grad, other.weight.grad)
    assert_same_rows(var, twin)


def test_ids_may_be_changed_between_forward_and_backward(var: es.EmbeddingVariable) -> None:
    ids = torch.tensor([1, 2])
    rows = es.torch.Embedding(var)(ids)
    ids.fill_(9)
    rows.sum().backward()
    assert var.get_frequency([1, 2, 9]).tolist() == [1, 1, 0]


@pytest.mark.parametrize("how", ["eval", "no_grad", "inference_mode"])
def test_serving_gives_rows_without_a_gradient(
    var: es.EmbeddingVariable, table: Any, how: str
) -> None:
    layer = es.torch.Embedding(var)
    ids = torch.tensor([1, 2])
    if how == "eval":
        rows = layer.eval()(ids)
    else:
        with getattr(torch, how)():
            rows = layer(ids)
    assert not rows.requires_grad
    assert torch.equal(rows, table[ids])
    assert var.total_count() == (0, DIM)


@pytest.mark.parametrize("module", [es.torch.Embedding, es.torch.EmbeddingBag])
def test_an_evaluation_moves_no_row_and_serving_does(
    make_variable: MakeVariable, storage_of: StorageOf, module: Any
) -> None:
    storage = storage_of(Stack(es.StorageType.DRAM_SSDHASH), 4096, upper_bytes=16)
    var = make_variable(storage=storage, optimizer=es.optimizers.SGD(0.1))
    var.apply_gradients([1, 1, 1, 2], np.ones((4, 3), np.float32))
    var.drain()
    model, ids = module(var), torch.tensor([[2, 2, 2, 2, 2]])
    wanted = model(ids)
    model.eval()
    for _ in range(3):
        torch.testing.assert_close(model(ids), wanted)
    var.drain()
    assert var.lookup_tier([1, 2]).tolist() == [0, 1]
    model.serves = True
    model(ids)
    var.drain()
    assert var.lookup_tier([1, 2]).tolist() == [1, 0]


def test_a_forward_alone_trains_nothing(var: es.EmbeddingVariable) -> None:
    rows = es.torch.Embedding(var)(torch.tensor([1]))
    del rows
    assert var.total_count() == (0, DIM)


def test_a_backward_that_fails_trains_nothing_then_or_later(var: es.EmbeddingVariable) -> None:
    layer = es.torch.Embedding(var)

    class Failing(torch.autograd.Function):  # type: ignore[misc,name-defined]
        @staticmethod
        def forward(ctx: Any, rows: Any) -> Any:
            del ctx
            return rows.clone()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            del ctx, grad
            raise RuntimeError("broken on purpose")

    healthy = layer(torch.tensor([1]))
    # Backward runs from the last forward to the first: `later` is gathered before the failure.
    failing = Failing.apply(layer(torch.tensor([2])))
    later = layer(torch.tensor([3]))
    with pytest.raises(RuntimeError, match="broken on purpose"):
        (healthy.sum() + failing.sum() + later.sum()).backward()
    assert var.total_count() == (0, DIM)
    gc.collect()
    layer(torch.tensor([4])).sum().backward()
    assert var.export()["keys"].tolist() == [4]


def test_an_error_of_the_variable_comes_out_of_backward(make_variable: MakeVariable) -> None:
    var = make_variable(storage=es.StorageOption(storage_size=[32]))
    layer = es.torch.Embedding(var)
    with pytest.raises(StoreFullError):
        layer(torch.tensor([1, 2])).sum().backward()
    assert var.total_count() == (0, 3)


def test_gradients_for_another_tensor_train_nothing(var: es.EmbeddingVariable) -> None:
    scale = torch.ones((), requires_grad=True)
    rows = es.torch.Embedding(var)(torch.tensor([1]))
    torch.autograd.grad((rows * scale).sum(), scale)
    assert var.total_count() == (0, DIM)


def test_a_gradient_that_is_changed_elsewhere_is_taken_as_it_was(
    var: es.EmbeddingVariable, table: Any
) -> None:
    layer, twin = es.torch.Embedding(var), Twin(table)
    ids = torch.tensor([[1, 2], [3, 1]])
    for embed, factor in ((layer, 0.0), (twin, 1.0)):
        bias = torch.nn.Parameter(torch.zeros(2, 2, DIM))

        def scale(bias: Any, by: float = factor) -> None:
            bias.grad.mul_(by)

        bias.register_post_accumulate_grad_hook(scale)
        rows = embed(ids)
        # The sum hands one gradient to the rows and to the bias.
        (rows + bias).pow(2).sum().backward()
    twin.step()
    assert_same_rows(var, twin)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_a_backward_that_makes_a_graph_trains_as_well(
    var: es.EmbeddingVariable, table: Any
) -> None:
    layer, twin = es.torch.Embedding(var), Twin(table)
    ids = torch.tensor([1, 2, 1])
    layer(ids).pow(2).sum().backward(create_graph=True)
    twin(ids).pow(2).sum().backward()
    twin.step()
    assert_same_rows(var, twin)


def test_gradients_of_half_precision_are_taken(var: es.EmbeddingVariable) -> None:
    layer = es.torch.Embedding(var)
    layer(torch.tensor([1])).to(torch.bfloat16).sum().backward()
    assert var.total_count() == (1, DIM)


def test_threads_train_one_variable(make_variable: MakeVariable) -> None:
    var = make_variable(
        optimizer=es.optimizers.SGD(1.0), initializer=es.initializers.Zeros(), dim=2
    )
    layer = es.torch.Embedding(var)

    def work() -> None:
        for _ in range(50):
            (-layer(torch.tensor([1, 2])).sum()).backward()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (var.lookup([1, 2]) == 200).all()


def test_modules_of_a_variable_have_one_parameter_without_elements_and_no_state(
    var: es.EmbeddingVariable,
) -> None:
    layer, bag = es.torch.Embedding(var), es.torch.EmbeddingBag(var, "sqrtn")
    (rows,) = torch.nn.ModuleList([layer, bag]).parameters()
    assert isinstance(rows, es.torch.Rows)
    assert rows.shape == (0, DIM)
    assert rows.grad is None
    assert layer.state_dict() == {}
    assert repr(layer) == f"Embedding({var!r})"
    assert repr(bag).endswith("mode='sqrtn')")
    assert repr(rows) == f"Rows({var!r})"


def test_rows_of_another_module_arent_loaded_in_silence(var: es.EmbeddingVariable) -> None:
    model = torch.nn.Sequential(es.torch.Embedding(var))
    model.load_state_dict({})
    with pytest.raises(RuntimeError, match=r"Unexpected key.*0\.weight"):
        model.load_state_dict(torch.nn.Sequential(torch.nn.Embedding(KEYS, DIM)).state_dict())


def derived(base: Any, var: es.EmbeddingVariable) -> Any:
    """A module of a class derived from `base`, with state of its own."""

    class Derived(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(var)
            self.scale = torch.nn.Parameter(torch.full((1,), 5.0))
            self.register_buffer("calls", torch.zeros(1))
            self.register_buffer("scratch", torch.zeros(1), persistent=False)
            self.projection = torch.nn.Linear(DIM, 2)
            self.weight = self.rows  # the same parameter by another name

    return Derived()


@pytest.mark.parametrize("base", [es.torch.Embedding, es.torch.EmbeddingBag])
@pytest.mark.parametrize("assign", [False, True])
def test_the_state_of_a_derived_class_is_saved_and_loaded_without_the_rows(
    var: es.EmbeddingVariable, base: Any, assign: bool
) -> None:
    model = torch.nn.Sequential(derived(base, var))
    state = copy.deepcopy(model.state_dict())
    assert sorted(state) == [
        "0.calls",
        "0.projection.bias",
        "0.projection.weight",
        "0.scale",
    ]
    other = torch.nn.Sequential(derived(base, var))
    for tensor in (other[0].scale, other[0].calls, other[0].projection.weight):
        tensor.data.fill_(1.0)
    other.load_state_dict(state, assign=assign)
    for key, tensor in other.state_dict().items():
        assert torch.equal(tensor, state[key])
    assert other[0].rows is other[0].weight is model[0].rows


def test_state_that_a_derived_class_misses_or_does_not_have_is_reported(
    var: es.EmbeddingVariable,
) -> None:
    model = torch.nn.Sequential(derived(es.torch.Embedding, var))
    state = model.state_dict()
    del state["0.scale"]
    state |= {"0.rows": torch.empty(0, DIM), "0.bias": torch.ones(1)}
    for assign in (False, True):
        told = model.load_state_dict(state, strict=False, assign=assign)
        assert told.missing_keys == ["0.scale"]
        assert sorted(told.unexpected_keys) == ["0.bias", "0.rows"]
        assert isinstance(model[0].rows, es.torch.Rows)
    with pytest.raises(RuntimeError, match=r'Missing key.*"0\.scale"'):
        model.load_state_dict(state)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_rows_come_out_in_the_modules_dtype_and_are_trained_in_float32(
    var: es.EmbeddingVariable, table: Any, dtype: Any
) -> None:
    model = torch.nn.Sequential(es.torch.Embedding(var), torch.nn.Linear(DIM, 1)).to(dtype)
    ids = torch.tensor([1, 2, 1])
    rows = model[0](ids)
    assert rows.dtype == dtype
    assert torch.equal(rows.detach(), table[ids].to(dtype))
    assert model.eval()[0](ids).dtype == dtype
    grads = torch.tensor([0.1, 0.2, 0.3], dtype=dtype)
    (rows * grads[:, None]).sum().backward()
    twin = Twin(table)
    (twin(ids) * grads.float()[:, None]).sum().backward()
    twin.step()
    assert_same_rows(var, twin)
    model(ids).sum().backward()


@pytest.fixture(params=["in place", "overwrite", "swap"])
def conversion(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tells PyTorch what to do with the parameters of a module that is converted."""
    of_name = {
        "overwrite": torch.__future__.set_overwrite_module_params_on_conversion,
        "swap": torch.__future__.set_swap_module_params_on_conversion,
    }
    tell = of_name.get(request.param, lambda _: None)
    tell(True)
    yield
    tell(False)


@pytest.mark.usefixtures("conversion")
@pytest.mark.parametrize(
    ("convert", "dtype"),
    [
        (lambda model: model.double(), torch.float64),
        (lambda model: model.bfloat16(), torch.bfloat16),
        (lambda model: model.to("cpu"), torch.float32),
        (lambda model: model.to_empty(device="cpu"), torch.float32),
    ],
)
def test_a_conversion_leaves_the_rows_that_the_variable_has(
    var: es.EmbeddingVariable, convert: Any, dtype: Any
) -> None:
    model = torch.nn.Sequential(derived(es.torch.Embedding, var))
    rows, names = model[0].rows, [name for name, _ in model.named_parameters()]
    assert convert(model) is model
    assert model[0].rows is model[0].weight is rows
    assert isinstance(rows, es.torch.Rows)
    assert [name for name, _ in model.named_parameters()] == names
    assert {tensor.dtype for tensor in (*model.parameters(), model[0].calls)} == {dtype}
    looked_up = model(torch.tensor([1]))
    assert looked_up.dtype == dtype
    looked_up.sum().backward()
    assert var.get_frequency([1]).tolist() == [1]


@pytest.mark.usefixtures("conversion")
@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
@pytest.mark.parametrize("to", ["meta", torch.complex64])
def test_a_conversion_to_the_meta_device_or_to_complex_numbers_changes_nothing(
    var: es.EmbeddingVariable, to: Any
) -> None:
    model = derived(es.torch.Embedding, var)
    rows = model.rows
    with pytest.raises(UnsupportedError, match=f"{var.name}: .* converted to .*{to}"):
        model.to(to)
    assert model.rows is model.weight is rows
    for tensor in (*model.parameters(), *model.buffers()):
        assert (tensor.dtype, tensor.device.type) == (torch.float32, "cpu")


@pytest.mark.usefixtures("conversion")
def test_a_model_that_is_made_without_memory_can_be_given_some(var: es.EmbeddingVariable) -> None:
    with torch.device("meta"):
        model = torch.nn.Sequential(es.torch.Embedding(var), torch.nn.Linear(DIM, 1))
    model.to_empty(device="cpu")
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    model(torch.tensor([1])).sum().backward()
    assert var.get_frequency([1]).tolist() == [1]


@pytest.mark.parametrize("base", [es.torch.Embedding, es.torch.EmbeddingBag])
def test_a_module_whose_rows_are_parametrized_looks_nothing_up(
    var: es.EmbeddingVariable, base: Any
) -> None:
    module = base(var)
    torch.nn.utils.parametrize.register_parametrization(module, "rows", torch.nn.Identity())
    with pytest.raises(UnsupportedError, match=f"{var.name}: .*a parametrization.*ignored_modules"):
        module(torch.tensor([[1]]))
    if isinstance(module, es.torch.EmbeddingBag):
        collection = es.torch.EmbeddingBagCollection({"feature": module})
        with pytest.raises(UnsupportedError, match=f"{var.name}: .*a parametrization"):
            collection({"feature": torch.tensor([[1]])})
    assert var.stats()["misses"] == 0


def test_a_replica_of_data_parallel_looks_rows_up(var: es.EmbeddingVariable, table: Any) -> None:
    layer: Any = es.torch.Embedding(var)
    replica = layer._replicate_for_data_parallel()
    assert torch.equal(replica(torch.tensor([1])).detach(), table[[1]])


def test_int32_ids_and_offsets_are_taken(var: es.EmbeddingVariable, table: Any) -> None:
    ids = torch.tensor([1, 2, 3], dtype=torch.int32)
    assert torch.equal(es.torch.Embedding(var)(ids).detach(), table[ids])
    bags = es.torch.EmbeddingBag(var, "sum")(ids, torch.tensor([0, 2], dtype=torch.int32))
    torch.testing.assert_close(bags.detach(), torch.stack([table[1] + table[2], table[3]]))


def test_padding_is_read_like_other_rows_and_not_trained(
    var: es.EmbeddingVariable, table: Any
) -> None:
    theirs = torch.nn.Embedding(KEYS, DIM, padding_idx=2)
    theirs.weight.data.copy_(table)
    optimizer = torch.optim.Adagrad(
        theirs.parameters(), lr=0.1, initial_accumulator_value=0.1, eps=0.0
    )
    layer = es.torch.Embedding(var, padding_idx=2)
    ids = torch.tensor([[1, 2], [2, 3], [2, 2]])
    assert torch.equal(layer(ids), theirs(ids))
    for embed in (layer, theirs):
        embed(ids).pow(2).sum().backward()
    optimizer.step()
    np.testing.assert_allclose(
        var.lookup(np.arange(KEYS)), theirs.weight.detach().numpy(), rtol=1e-5, atol=1e-6
    )
    assert var.get_frequency([1, 2, 3]).tolist() == [1, 0, 1]
    assert "padding_idx=2" in repr(layer)


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("by_offsets", [False, True])
def test_bags_leave_padding_out(
    var: es.EmbeddingVariable, table: Any, mode: str, by_offsets: bool
) -> None:
    ids = torch.tensor([[1, 2, 3], [2, 2, 2], [4, 1, 2], [5, 6, 5]])
    arguments = (ids.reshape(-1), torch.tensor([0, 3, 6, 9])) if by_offsets else (ids,)
    weight = torch.nn.Parameter(table.clone())
    layer = es.torch.EmbeddingBag(var, mode, padding_idx=2)
    bags = layer(*arguments)
    theirs = torch.nn.functional.embedding_bag(
        arguments[0], weight, *arguments[1:], mode=mode, padding_idx=2
    )
    torch.testing.assert_close(bags, theirs)
    bags.pow(2).sum().backward()
    theirs.pow(2).sum().backward()
    twin = Twin(table)
    twin.weight.grad = weight.grad
    twin.step()
    assert_same_rows(var, twin)
    assert var.get_frequency([2]).tolist() == [0]


def test_a_copy_of_a_module_is_refused_or_shares_the_variable(var: es.EmbeddingVariable) -> None:
    model = torch.nn.Sequential(es.torch.Embedding(var), torch.nn.Linear(DIM, 1))
    with pytest.raises(UnsupportedError, match=r"copy.deepcopy\(model, {id\(variable\)"):
        copy.deepcopy(model)
    with pytest.raises(UnsupportedError, match=r"embstore.save"):
        pickle.dumps(model)
    shared = copy.deepcopy(model, {id(var): var})
    assert shared[0].variable is var
    assert next(shared.parameters()) is next(model.parameters())
    shared(torch.tensor([1])).sum().backward()
    assert var.total_count() == (1, DIM)


def test_a_frozen_variable_gives_rows_without_a_gradient(
    var: es.EmbeddingVariable, table: Any
) -> None:
    layer = es.torch.Embedding(var)
    layer.requires_grad_(False)
    rows = layer(torch.tensor([1]))
    assert not rows.requires_grad
    assert torch.equal(rows, table[[1]])


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_a_gradient_that_isnt_finite_trains_nothing(var: es.EmbeddingVariable, bad: float) -> None:
    layer = es.torch.Embedding(var)
    weights = torch.ones(2, DIM)
    weights[1, 3] = bad
    with pytest.raises(InvalidArgumentError, match=r"inf or nan.*embstore.torch.Optimizer"):
        (layer(torch.tensor([1, 2])) * weights).sum().backward()
    assert var.total_count() == (0, DIM)


def test_gradients_may_be_finite_while_their_sum_is_not(var: es.EmbeddingVariable) -> None:
    (es.torch.Embedding(var)(torch.tensor([1])) * 1e19).sum().backward()
    (es.torch.Embedding(var)(torch.tensor([1, 2])) * 3e38).sum().backward()
    assert var.total_count() == (2, DIM)


def test_a_scaled_loss_without_the_optimizer_of_rows_is_refused_before_it_trains(
    var: es.EmbeddingVariable,
) -> None:
    model = torch.nn.Sequential(es.torch.Embedding(var), torch.nn.Linear(DIM, 1))
    dense = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(scaler: Any) -> None:
        scaler.scale(model(torch.tensor([1, 2])).sum()).backward()
        scaler.step(dense)
        scaler.update()

    with pytest.raises(InvalidArgumentError, match=r"var_0: .*GradScaler had scaled"):
        step(torch.amp.GradScaler("cpu", init_scale=4.0))
    assert var.total_count() == (0, DIM)
    step(torch.amp.GradScaler("cpu", enabled=False))
    assert var.total_count() == (2, DIM)


@pytest.mark.parametrize(
    "scaled",
    [
        lambda scaler, loss: scaler.scale(loss) / 2,
        lambda scaler, loss: sum(scaler.scale([loss, loss])),
        lambda scaler, loss: next(scaler.scale(loss for _ in range(1))),
    ],
)
def test_a_scaled_loss_is_noticed_however_the_scaler_was_given_it(
    var: es.EmbeddingVariable, scaled: Any
) -> None:
    loss = es.torch.Embedding(var)(torch.tensor([1])).sum()
    with pytest.raises(InvalidArgumentError, match="GradScaler had scaled"):
        scaled(torch.amp.GradScaler("cpu"), loss).backward()


def test_a_table_that_trains_at_once_does_not_disturb_a_scaler_of_another_model(
    make_variable: MakeVariable,
) -> None:
    at_once, scaled = (es.torch.Embedding(make_variable(name=name)) for name in ("a", "b"))
    optimizer, scaler = es.torch.Optimizer(scaled), torch.amp.GradScaler("cpu")
    ids = torch.tensor([1])
    for _ in range(2):
        at_once(ids).sum().backward()
        scaler.scale(scaled(ids).sum()).backward()
        at_once(ids).sum().backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert at_once.variable.get_frequency([1]).tolist() == [4]
    assert scaled.variable.get_frequency([1]).tolist() == [2]


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")
@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.long)])
def test_a_compiled_model_trains_the_same_rows(make_variable: MakeVariable, backend: str) -> None:
    class Model(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.var = make_variable(dim=DIM)
            self.rows = es.torch.Embedding(self.var)
            self.bags = es.torch.EmbeddingBag(self.var)
            self.padded = es.torch.EmbeddingBag(self.var, padding_idx=2)
            self.weighted = es.torch.EmbeddingBag(self.var, "sum", padding_idx=4)
            self.weights = torch.nn.Parameter(torch.arange(6.0))
            self.linear = torch.nn.Linear(DIM, 1)

        def forward(self, ids: Any) -> Any:
            flat, offsets = ids.reshape(-1), torch.tensor([0, 2])
            bags = self.bags(ids) + self.padded(flat, offsets)
            bags = bags + self.weighted(flat, offsets, self.weights)
            return self.linear(torch.relu(self.rows(ids) * 2).sum(1) + bags)

    plain, compiled = Model(), Model()
    losses = []
    for model in (plain, torch.compile(compiled, backend=backend, fullgraph=False)):
        for step in range(3):
            loss = model(torch.tensor([[1, 2, 3], [4, step, 1]])).pow(2).sum()
            loss.backward()
            losses.append(loss.item())
    assert losses[:3] == losses[3:]
    np.testing.assert_array_equal(compiled.var.export()["values"], plain.var.export()["values"])
    torch.testing.assert_close(compiled.weights.grad, plain.weights.grad)


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
@pytest.mark.parametrize("module", [es.torch.Embedding, es.torch.EmbeddingBag])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(
    ("record", "message"),
    [
        (lambda model, ids: torch.jit.trace(model, ids), r"torch\.jit\.trace.*to_torch"),
        (lambda model, ids: torch.export.export(model, (ids,), strict=False), r"torch\.export"),
        (lambda model, ids: torch.vmap(model)(ids.unsqueeze(0)), r"torch\.vmap"),
        (
            lambda model, ids: torch.func.grad(lambda by: (model(ids) * by).sum())(torch.ones(1)),
            r"torch\.func\.grad.*give the transformed function the rows",
        ),
    ],
    ids=["trace", "export", "vmap", "grad"],
)
def test_recording_or_transforming_a_look_up_is_refused(
    var: es.EmbeddingVariable, module: Any, train: bool, record: Any, message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        record(module(var).train(train), torch.tensor([[1, 2]]))


def test_backward_raises_if_the_variable_does_not_exist_any_more() -> None:
    var = es.get_embedding_variable("gone", DIM, optimizer=es.optimizers.SGD(0.1))
    loss = es.torch.Embedding(var)(torch.tensor([1])).sum()
    del var
    gc.collect()
    with pytest.raises(ClosedError, match="gone doesn't exist any more"):
        loss.backward()


@pytest.mark.long
def test_a_script_ends_without_a_word_about_leaks() -> None:
    program = """
import torch
import embstore as es
table = es.get_embedding_variable("t", 4, optimizer=es.optimizers.Adagrad(0.1))
model = torch.nn.Sequential(es.torch.Embedding(table), torch.nn.Linear(4, 1))
loss = model(torch.tensor([1, 2])).sum()
loss.backward()
rows = es.torch.Optimizer(model)
for parameter in model.parameters():
    parameter.register_hook(lambda grad: grad.clamp(-1, 1))
loss = model(torch.tensor([1, 2])).sum()
loss.backward()
rows.step()
untrained = model(torch.tensor([5]))
"""
    run = run_python(program)
    assert (run.returncode, run.stderr) == (0, "")


MODES = ("sum", "mean", "sqrtn")


def combined(rows: Any, mode: str) -> Any:
    """Returns one bag, combined by hand."""
    if len(rows) == 0:
        return torch.zeros(DIM)
    divisor = {"sum": 1.0, "mean": float(len(rows)), "sqrtn": len(rows) ** 0.5}[mode]
    return rows.sum(0) / divisor


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("ids", "offsets"),
    [
        *(([1, 2, 3, 3, 4, 1], offsets) for offsets in ([0, 2, 2, 5], [0], [0, 0, 6], [0, 6, 6])),
        ([[1, 2, 2], [3, 4, 5]], None),
    ],
)
def test_bags_equal_those_that_are_combined_by_hand(
    var: es.EmbeddingVariable, table: Any, mode: str, ids: list[Any], offsets: list[int] | None
) -> None:
    layer, twin = es.torch.EmbeddingBag(var, mode), Twin(table)
    given, begins = torch.tensor(ids), None if offsets is None else torch.tensor(offsets)
    parts = given if begins is None else torch.tensor_split(given, begins[1:])
    bags = layer(given, begins)
    by_hand = torch.stack([combined(twin(part), mode) for part in parts])
    torch.testing.assert_close(bags, by_hand)
    bags.pow(3).sum().backward()
    by_hand.pow(3).sum().backward()
    twin.step()
    assert_same_rows(var, twin)


@pytest.mark.parametrize("mode", MODES)
def test_empty_bags_give_zeros(var: es.EmbeddingVariable, mode: str) -> None:
    layer = es.torch.EmbeddingBag(var, mode)
    none = torch.empty(0, dtype=torch.int64)
    assert torch.equal(layer(none, torch.tensor([0, 0])), torch.zeros(2, DIM))
    assert torch.equal(layer(none.view(3, 0)), torch.zeros(3, DIM))
    assert layer(none, none).shape == (0, DIM)
    layer(none, torch.tensor([0, 0])).sum().backward()
    assert var.total_count() == (0, DIM)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.tensor([1.0]),), "ids must be an int64 or int32 tensor, got torch.float32"),
        ((torch.tensor([True]),), "ids must be an int64 or int32 tensor, got torch.bool"),
        (([1],), "ids must be an int64 or int32 tensor, got list"),
        (
            (torch.tensor([[0, 7]]).to_sparse(),),
            "ids must be a dense tensor, got a sparse_coo one.*offsets",
        ),
        (
            (
                torch.nested.nested_tensor(
                    [torch.tensor([1]), torch.tensor([2, 3])], layout=torch.jagged
                ),
            ),
            "ids must be a dense tensor, got a nested one",
        ),
        (
            (torch.tensor([1]),),
            "offsets must say where each bag starts where ids are 1-D, got None",
        ),
        (
            (torch.tensor([1]), torch.tensor([0]).to_sparse()),
            "offsets must be a dense tensor, got a sparse_coo one",
        ),
        (
            (torch.tensor([1]), torch.tensor([0]), torch.ones(1).to_sparse()),
            "per_sample_weights must be a dense tensor, got a sparse_coo one",
        ),
        ((torch.tensor([1]), torch.tensor([0.0])), "offsets must be an int64 or int32 tensor"),
        ((torch.tensor([1]), torch.tensor([[0]])), "offsets must be 1-D, got 2-D"),
        ((torch.tensor([1]), torch.tensor([1])), "offsets must start at 0"),
        ((torch.tensor([1, 2]), torch.tensor([0, 2, 1])), "offsets must start at 0 and ascend"),
        ((torch.tensor([1, 2]), torch.tensor([0, 3])), "ascend to at most 2"),
        (
            (torch.tensor([1]), torch.empty(0, dtype=torch.int64)),
            "offsets has no bag, but there are 1 ids",
        ),
        ((torch.tensor([[1]]), torch.tensor([0])), "offsets must be None where ids are 2-D"),
        ((torch.tensor(1),), "ids must be 1-D or 2-D, got 0-D"),
        ((torch.ones(1, 1, 1, dtype=torch.int64),), "ids must be 1-D or 2-D, got 3-D"),
    ],
)
def test_impossible_bags_are_refused(
    var: es.EmbeddingVariable, arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        es.torch.EmbeddingBag(var, "sum")(*arguments)


@pytest.mark.parametrize("kind", ["sparse", "nested", "meta"])
def test_a_look_up_by_tensors_that_numpy_cant_read_is_refused(
    var: es.EmbeddingVariable, kind: str
) -> None:
    ids: Any = torch.tensor([[0, 7]]).to_sparse()
    if kind == "meta":
        ids = ids.to_dense().to("meta")
    elif kind == "nested":
        parts = [torch.tensor([1]), torch.tensor([2, 3])]
        ids = torch.nested.nested_tensor(parts, layout=torch.jagged)
    with pytest.raises(InvalidArgumentError, match=r"ids must be an array, got a torch\."):
        var.lookup(ids)


def test_ids_of_another_kind_are_refused(var: es.EmbeddingVariable) -> None:
    with pytest.raises(InvalidArgumentError, match=r"got torch.float32; convert with ids.long\(\)"):
        es.torch.Embedding(var)(torch.tensor([1.0]))


def test_ids_without_values_are_refused(var: es.EmbeddingVariable) -> None:
    ids, offsets = torch.tensor([1], device="meta"), torch.tensor([0], device="meta")
    look_ups: list[Callable[[], Any]] = [
        lambda: es.torch.Embedding(var)(ids),
        lambda: es.torch.EmbeddingBag(var)(ids, offsets),
    ]
    for look_up in look_ups:
        with pytest.raises(InvalidArgumentError, match=r"ids must have values, .* device meta"):
            look_up()


def test_a_module_needs_a_variable_and_a_known_mode(var: es.EmbeddingVariable) -> None:
    with pytest.raises(InvalidArgumentError, match="variable must be"):
        es.torch.Embedding(torch.nn.Embedding(3, 3))
    wrong: list[Any] = ["max", None, np.arange(3)]
    for mode in wrong:
        with pytest.raises(InvalidArgumentError, match="mode must be one of sum, mean, sqrt"):
            es.torch.EmbeddingBag(var, mode)


def test_the_engine_needs_no_torch_and_says_what_its_modules_need() -> None:
    program = """
import sys
sys.modules["torch"] = None  # as if it weren't installed
import embstore as es
es.get_embedding_variable("var", 3).lookup([1])
try:
    es.torch.Embedding
except es.errors.MissingLibraryError as error:
    print(error)
"""
    run = run_python(program)
    assert "embstore.torch needs PyTorch" in run.stdout, run.stderr
