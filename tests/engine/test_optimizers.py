"""Every update rule is compared with one that shares no code with it: PyTorch's, or a float64
formula."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
from engine_storage import MakeVariable
from numpy.typing import NDArray
from programs import run_program

import embstore as es
from embstore import optimizers
from embstore.errors import InvalidArgumentError

torch = pytest.importorskip("torch")

DIM = 13
STEPS = 40
F64 = NDArray[np.float64]

# (initial weights, one gradient a step, or None where the row is left out) -> weights
Reference = Callable[[F64, list[F64 | None]], F64]


def by_torch(make: Callable[..., Any], **arguments: float) -> Reference:
    def train(weights: F64, grads: list[F64 | None]) -> F64:
        parameter = torch.nn.Parameter(torch.from_numpy(weights.copy()))
        optimizer = make([parameter], **arguments)
        for grad in grads:
            assert grad is not None
            parameter.grad = torch.from_numpy(grad.copy())
            optimizer.step()
        trained: F64 = parameter.detach().numpy()
        return trained

    return train


def adam_formula(rate: float, beta1: float, beta2: float, epsilon: float) -> Reference:
    def train(w: F64, grads: list[F64 | None]) -> F64:
        m, v = np.zeros_like(w), np.zeros_like(w)
        for t, g in enumerate(grads, start=1):
            if g is None:
                continue
            m = beta1 * m + (1 - beta1) * g
            v = beta2 * v + (1 - beta2) * g**2
            w = w - rate * math.sqrt(1 - beta2**t) / (1 - beta1**t) * m / (np.sqrt(v) + epsilon)
        return w

    return train


def sparse_rmsprop_formula(rate: float, beta1: float, beta2: float, epsilon: float) -> Reference:
    def train(w: F64, grads: list[F64 | None]) -> F64:
        m, v = np.zeros_like(w), np.zeros_like(w)
        for g in grads:
            if g is not None:
                v = beta2 * v + (1 - beta2) * g**2
                m = beta1 * m + rate * g / np.sqrt(v + epsilon)
                w = w - m
        return w

    return train


def ftrl_formula(rate: float, lr_power: float, start: float, l1: float, l2: float) -> Reference:
    def train(w: F64, grads: list[F64 | None]) -> F64:
        accum, linear = np.full_like(w, start), np.zeros_like(w)
        for g in grads:
            if g is None:
                continue
            new_accum = accum + g**2
            sigma = (new_accum ** (-lr_power) - accum ** (-lr_power)) / rate
            linear = linear + g - sigma * w
            accum = new_accum
            norm = float(np.linalg.norm(linear))
            eta = accum ** (-lr_power) / rate
            w = (l1 - norm) / ((eta + 2 * l2) * norm) * linear if norm > l1 else np.zeros_like(w)
        return w

    return train


def adagrad_decay_formula(rate: float, start: float, period: int, decay: float) -> Reference:
    def train(w: F64, grads: list[F64 | None]) -> F64:
        accum, decays = np.full_like(w, start), 0
        for step, g in enumerate(grads):
            if g is None:
                continue
            if (step + 1) // period > decays:
                accum, decays = np.maximum(accum * decay, start), decays + 1
            accum = accum + g**2
            w = w - rate * g / np.sqrt(accum)
        return w

    return train


CASES: list[tuple[optimizers.Optimizer, Reference]] = [
    (optimizers.SGD(0.1), by_torch(torch.optim.SGD, lr=0.1)),
    (
        optimizers.Adagrad(0.1, initial_accumulator_value=0.3),
        by_torch(torch.optim.Adagrad, lr=0.1, initial_accumulator_value=0.3, eps=0.0),
    ),
    # If PyTorch adds epsilon elsewhere, epsilon is too small to show.
    (optimizers.Adam(0.01, epsilon=1e-12), by_torch(torch.optim.Adam, lr=0.01, eps=1e-12)),
    (optimizers.Adam(0.01, 0.8, 0.99, 0.1), adam_formula(0.01, 0.8, 0.99, 0.1)),
    (optimizers.AdamAsync(0.01, 0.8, 0.99, 0.1), adam_formula(0.01, 0.8, 0.99, 0.1)),
    (
        optimizers.AdamAsync(0.01, 0.8, 0.99, 0.1, apply_sparse_rmsprop=True),
        sparse_rmsprop_formula(0.01, 0.8, 0.99, 0.1),
    ),
    (
        optimizers.AdamW(0.05, learning_rate=0.01, epsilon=0.1),
        by_torch(torch.optim.AdamW, lr=0.01, eps=0.1, weight_decay=0.05),
    ),
    (optimizers.Adamax(0.01, epsilon=1e-12), by_torch(torch.optim.Adamax, lr=0.01, eps=1e-12)),
    (
        optimizers.Adadelta(0.5, rho=0.9, epsilon=1e-3),
        by_torch(torch.optim.Adadelta, lr=0.5, rho=0.9, eps=1e-3),
    ),
    (
        optimizers.RMSprop(0.01, rho=0.8, epsilon=1e-14),
        by_torch(torch.optim.RMSprop, lr=0.01, alpha=0.8, eps=1e-14),
    ),
    (
        optimizers.RMSprop(0.01, rho=0.8, momentum=0.7, epsilon=1e-14),
        by_torch(torch.optim.RMSprop, lr=0.01, alpha=0.8, momentum=0.7, eps=1e-14),
    ),
    (optimizers.Ftrl(0.1), ftrl_formula(0.1, -0.5, 0.1, 0.0, 0.0)),
    (optimizers.Ftrl(0.2, -0.7, 0.5, 1.5, 0.01), ftrl_formula(0.2, -0.7, 0.5, 1.5, 0.01)),
    (optimizers.Ftrl(0.1, -0.5, 0.1, 25.0, 0.01), ftrl_formula(0.1, -0.5, 0.1, 25.0, 0.01)),
    (optimizers.AdagradDecay(0.1, 0.1, 7, 0.5), adagrad_decay_formula(0.1, 0.1, 7, 0.5)),
    (optimizers.AdagradDecayV2(0.1, 0.1, 7, 0.5), adagrad_decay_formula(0.1, 0.1, 7, 0.5)),
]
IDS = [f"{optimizer.name}-{i}" for i, (optimizer, _) in enumerate(CASES)]


def train(
    make_variable: MakeVariable, optimizer: optimizers.Optimizer, grads: list[F64 | None]
) -> NDArray[np.float32]:
    """Returns row 0 after the gradients. Row 1 is trained in every step, so that applies go on."""
    var = make_variable(dim=DIM, optimizer=optimizer)
    for grad in grads:
        ids = [1] if grad is None else [0, 1]
        rows = [np.ones(DIM), *([] if grad is None else [grad])]
        var.apply_gradients(ids, np.array(rows[::-1], np.float32))
    row: NDArray[np.float32] = var.lookup([0])[0]
    return row


def some_gradients() -> list[F64]:
    random = np.random.RandomState(11)
    return list(random.standard_normal((STEPS, DIM)).astype(np.float32).astype(np.float64))


@pytest.mark.parametrize(("optimizer", "reference"), CASES, ids=IDS)
def test_a_rule_gives_what_its_reference_gives(
    make_variable: MakeVariable, optimizer: optimizers.Optimizer, reference: Reference
) -> None:
    grads: list[F64 | None] = [*some_gradients()]
    wanted = reference(np.ones(DIM), grads)
    np.testing.assert_allclose(train(make_variable, optimizer, grads), wanted, rtol=2e-5, atol=2e-6)


SKIPPING = [case for case in CASES if not case[1].__qualname__.startswith("by_torch")]


@pytest.mark.parametrize(
    ("optimizer", "reference"), SKIPPING, ids=[case[0].name for case in SKIPPING]
)
def test_a_row_that_is_left_out_keeps_its_slots_while_the_applies_count_on(
    make_variable: MakeVariable, optimizer: optimizers.Optimizer, reference: Reference
) -> None:
    grads = [g if i % 3 else None for i, g in enumerate(some_gradients())]
    wanted = reference(np.ones(DIM), grads)
    np.testing.assert_allclose(train(make_variable, optimizer, grads), wanted, rtol=2e-5, atol=2e-6)


def test_ftrl_zeroes_a_row_whose_norm_is_within_l1(make_variable: MakeVariable) -> None:
    var = make_variable(
        initializer=es.initializers.Zeros(),
        optimizer=optimizers.Ftrl(0.1, l1_regularization_strength=5.0),
    )
    # With weights of 0 the linear part is the gradient: norm 5 and a little more than 5.
    var.apply_gradients([1, 2], np.array([[3, 4, 0], [3, 4, 0.1]], np.float32))
    rows = var.lookup([1, 2])
    assert (rows[0] == 0).all()
    assert (rows[1] != 0).all()


def test_ftrl_leaves_weights_alone_that_never_had_a_gradient(make_variable: MakeVariable) -> None:
    var = make_variable(optimizer=optimizers.Ftrl(0.1, initial_accumulator_value=0.0))
    var.apply_gradients([1], np.array([[2, 0, -2]], np.float32))
    row = var.lookup([1])[0]
    assert row[1] == 1.0
    assert np.isfinite(row).all()


def test_adagrad_decay_gives_deeprecs_losses(make_variable: MakeVariable) -> None:
    var = make_variable(optimizer=optimizers.AdagradDecayV2(0.1, accumulator_decay_step=2))
    losses = []
    for _ in range(3):
        rows = var.lookup([0, 1, 2, 5, 6, 7], train=True)
        losses.append(2 * rows.sum())
        var.apply_gradients([0, 1, 2, 5, 6, 7], np.full((6, 3), 2.0, np.float32))
    np.testing.assert_allclose(losses, [36.0, 32.444176, 29.847788], rtol=1e-6)


def test_rmsprop_without_momentum_keeps_one_slot() -> None:
    assert optimizers.RMSprop().slots == ("rms",)
    assert optimizers.RMSprop(momentum=0.9).slots == ("rms", "momentum")


def test_an_optimizer_never_changes() -> None:
    with pytest.raises(FrozenInstanceError):
        optimizers.SGD(0.1).learning_rate = 0.2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: optimizers.SGD(-0.1), "learning_rate"),
        (lambda: optimizers.SGD("fast"), "learning_rate"),  # type: ignore[arg-type]
        (lambda: optimizers.SGD(float("nan")), "learning_rate"),
        (lambda: optimizers.SGD(1e39), "learning_rate"),
        (lambda: optimizers.Ftrl(1e39), "learning_rate"),
        (lambda: optimizers.Adagrad(0.1, initial_accumulator_value=0), "initial_accumulator_value"),
        (lambda: optimizers.Adam(beta1=1.0), "beta1"),
        (lambda: optimizers.Adam(beta2=-0.1), "beta2"),
        (lambda: optimizers.Adam(epsilon=0), "epsilon"),
        (lambda: optimizers.Ftrl(0), "learning_rate"),
        (lambda: optimizers.Ftrl(0.1, learning_rate_power=0.5), "learning_rate_power"),
        (lambda: optimizers.Ftrl(0.1, l1_regularization_strength=-1), "l1_regularization"),
        (lambda: optimizers.AdagradDecay(0.1, accumulator_decay_step=0), "accumulator_decay_step"),
        (lambda: optimizers.AdagradDecay(0.1, accumulator_decay_rate=1), "accumulator_decay_rate"),
        (lambda: optimizers.AdamW(weight_decay=-1), "weight_decay"),
        (lambda: optimizers.Adadelta(rho=1.0), "rho"),
        (lambda: optimizers.RMSprop(momentum=1.0), "momentum"),
    ],
)
def test_a_parameter_that_cant_work_is_named(
    make: Callable[[], optimizers.Optimizer], argument: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{argument}.* must be"):
        make()


# As float32 the first is 0, the second 1, the third infinite.
ZERO, ONE, INFINITE = 1e-46, 1 - 1e-9, 1e39


@pytest.mark.parametrize(
    ("rule", "arguments"),
    [
        *(
            (optimizers.AdamW, {"weight_decay": 0.1, "epsilon": value})
            if rule is optimizers.AdamW
            else (rule, {"epsilon": value})
            for rule in (
                optimizers.Adam,
                optimizers.AdamW,
                optimizers.AdamAsync,
                optimizers.Adamax,
                optimizers.Adadelta,
                optimizers.RMSprop,
            )
            for value in (ZERO, INFINITE)
        ),
        *(
            (rule, {"learning_rate": 0.1, "initial_accumulator_value": value})
            for rule in (optimizers.Adagrad, optimizers.AdagradDecay, optimizers.AdagradDecayV2)
            for value in (ZERO, INFINITE)
        ),
        (optimizers.AdagradDecay, {"learning_rate": 0.1, "accumulator_decay_rate": ZERO}),
        (optimizers.AdagradDecay, {"learning_rate": 0.1, "accumulator_decay_rate": ONE}),
        (optimizers.AdamW, {"weight_decay": INFINITE}),
        (optimizers.AdamAsync, {"apply_sparse_rmsprop": True, "beta1": ONE}),
        (optimizers.Adamax, {"beta2": ONE}),
        (optimizers.RMSprop, {"momentum": ONE}),
        (optimizers.Ftrl, {"learning_rate": ZERO}),
        (optimizers.Ftrl, {"learning_rate": 1e-39}),
        (optimizers.Ftrl, {"learning_rate": 0.1, "initial_accumulator_value": INFINITE}),
        (optimizers.Ftrl, {"learning_rate": 0.1, "l2_regularization_strength": INFINITE}),
        (optimizers.Ftrl, {"learning_rate": 0.1, "learning_rate_power": -INFINITE}),
        (optimizers.SGD, {"learning_rate": 10**400}),
        (optimizers.Adam, {"beta1": 10**400}),
        (optimizers.Adam, {"beta2": 10**5000}),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_parameter_that_float32_cant_have_is_named(
    rule: Callable[..., optimizers.Optimizer], arguments: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{list(arguments)[-1]} must be"):
        rule(**arguments)


@pytest.mark.parametrize(
    "optimizer",
    [
        optimizers.Adam(0.1, beta1=ONE, beta2=ONE),  # the difference to 1 is taken in float64
        optimizers.AdamAsync(0.1, beta1=ONE),
        optimizers.Adagrad(0.1, initial_accumulator_value=1e-37),
        optimizers.Adam(0.1, epsilon=1e-37),
        optimizers.Ftrl(0.1, initial_accumulator_value=ZERO),  # 0 is allowed
        optimizers.Ftrl(0.1, l1_regularization_strength=INFINITE),  # used as float64
    ],
    ids=str,
)
def test_a_parameter_that_float32_has_leaves_rows_finite(
    make_variable: MakeVariable, optimizer: optimizers.Optimizer
) -> None:
    var = make_variable(optimizer=optimizer, dim=3)
    var.apply_gradients([1, 2], [[0.0] * 3, [1.0] * 3])
    assert np.isfinite(var.lookup([1, 2])).all()


def trained_with_vectors(extensions: str) -> subprocess.CompletedProcess[str]:
    """Prints Ftrl's row after a step, computed by the named vector instructions."""
    program = """
import embstore as es
var = es.get_embedding_variable("v", 9, optimizer=es.optimizers.Ftrl(0.1))
var.apply_gradients([1], [[0.1, -0.2, 0.3] * 3])
print(var.lookup([1]).tobytes().hex())
"""
    return run_program(program, environment={**os.environ, "EMBSTORE_CPU": extensions})


def test_the_vector_instructions_can_be_chosen_and_give_the_same_bits() -> None:
    assert trained_with_vectors("default").stdout == trained_with_vectors("").stdout != ""
    refused = trained_with_vectors("sse9")
    assert "InvalidArgumentError: EMBSTORE_CPU: must be default or avx2, got sse9" in refused.stderr
