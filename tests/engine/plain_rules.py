"""The core's update rules in NumPy: its float32 arithmetic, operation by operation, so that results
can be compared bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import embstore as es

F32 = np.float32
Row = NDArray[np.float32]


@dataclass(frozen=True)
class Step:
    t: int  # number of updates, this one included
    global_step: int
    rate: float


Update = Callable[[Row, list[Row], Row, Step], None]  # weights, slots, gradient


def sgd(optimizer: es.optimizers.SGD) -> Update:
    del optimizer

    def update(w: Row, slots: list[Row], g: Row, step: Step) -> None:
        del slots
        w -= F32(step.rate) * g

    return update


def adagrad(optimizer: es.optimizers.Adagrad) -> Update:
    del optimizer

    def update(w: Row, slots: list[Row], g: Row, step: Step) -> None:
        (a,) = slots
        a += g * g
        w -= F32(step.rate) * g / np.sqrt(a)

    return update


def adagrad_decay(optimizer: es.optimizers.AdagradDecay) -> Update:
    start, decay = F32(optimizer.initial_accumulator_value), F32(optimizer.accumulator_decay_rate)

    def update(w: Row, slots: list[Row], g: Row, step: Step) -> None:
        a, decays = slots
        if (step.global_step + 1) // optimizer.accumulator_decay_step > decays[0]:
            a[:] = np.maximum(a * decay, start)
            decays += F32(1)
        a += g * g
        w -= F32(step.rate) * g / np.sqrt(a)

    return update


def adam(optimizer: es.optimizers.Adam | es.optimizers.AdamAsync) -> Update:
    powers = _Powers(optimizer.beta1, optimizer.beta2)

    def update(w: Row, slots: list[Row], g: Row, step: Step) -> None:
        power1, power2 = powers[step.t]
        size = F32(step.rate * math.sqrt(1.0 - power2) / (1.0 - power1))
        m, v = slots
        m += F32(1.0 - optimizer.beta1) * (g - m)
        v += F32(1.0 - optimizer.beta2) * (g * g - v)
        w -= size * m / (np.sqrt(v) + F32(optimizer.epsilon))

    return update


def adam_async(optimizer: es.optimizers.AdamAsync) -> Update:
    if not optimizer.apply_sparse_rmsprop:
        return adam(optimizer)

    def update(w: Row, slots: list[Row], g: Row, step: Step) -> None:
        m, v = slots
        v += F32(1.0 - optimizer.beta2) * (g * g - v)
        m[:] = F32(optimizer.beta1) * m + F32(step.rate) * g / np.sqrt(v + F32(optimizer.epsilon))
        w -= m

    return update


def adam_w(optimizer: es.optimizers.AdamW) -> Update:
    powers = _Powers(optimizer.beta1, optimizer.beta2)

    def update(w: Row, slots: list[Row], g: Row, step: Step) -> None:
        power1, power2 = powers[step.t]
        size = F32(step.rate / (1.0 - power1))
        v_scale = F32(1.0 / math.sqrt(1.0 - power2))
        m, v = slots
        m += F32(1.0 - optimizer.beta1) * (g - m)
        v += F32(1.0 - optimizer.beta2) * (g * g - v)
        decay = F32(step.rate * optimizer.weight_decay)
        w -= size * m / (np.sqrt(v) * v_scale + F32(optimizer.epsilon)) + decay * w

    return update


def adamax(optimizer: es.optimizers.Adamax) -> Update:
    powers = _Powers(optimizer.beta1, optimizer.beta2)

    def update(w: Row, slots: list[Row], g: Row, step: Step) -> None:
        size = F32(step.rate / (1.0 - powers[step.t][0]))
        m, u = slots
        m += F32(1.0 - optimizer.beta1) * (g - m)
        u[:] = np.maximum(F32(optimizer.beta2) * u, np.abs(g))
        w -= size * m / (u + F32(optimizer.epsilon))

    return update


def adadelta(optimizer: es.optimizers.Adadelta) -> Update:
    gain, epsilon = F32(1.0 - optimizer.rho), F32(optimizer.epsilon)

    def update(w: Row, slots: list[Row], g: Row, step: Step) -> None:
        a, b = slots
        a += gain * (g * g - a)
        delta = g * np.sqrt(b + epsilon) / np.sqrt(a + epsilon)
        b += gain * (delta * delta - b)
        w -= F32(step.rate) * delta

    return update


def rmsprop(optimizer: es.optimizers.RMSprop) -> Update:
    gain, epsilon = F32(1.0 - optimizer.rho), F32(optimizer.epsilon)

    def update(w: Row, slots: list[Row], g: Row, step: Step) -> None:
        a = slots[0]
        a += gain * (g * g - a)
        delta = F32(step.rate) * g / np.sqrt(a + epsilon)
        if optimizer.momentum > 0:
            slots[1][:] = F32(optimizer.momentum) * slots[1] + delta
            delta = slots[1]
        w -= delta

    return update


def ftrl(optimizer: es.optimizers.Ftrl) -> Update:
    assert optimizer.learning_rate_power == -0.5, "numpy's power may round unlike the C library's"
    l1, l2 = optimizer.l1_regularization_strength, optimizer.l2_regularization_strength

    def update(w: Row, slots: list[Row], g: Row, step: Step) -> None:
        a, linear = slots
        raised = a + g * g
        linear += g - (np.sqrt(raised) - np.sqrt(a)) * F32(1.0 / step.rate) * w
        a[:] = raised
        norm = _norm(linear)
        if norm <= l1:
            w[:] = 0
        else:
            shrunk = F32((l1 / norm - 1.0) * step.rate) * linear
            w[:] = shrunk / (np.sqrt(a) + F32(2.0 * l2 * step.rate))

    return update


_RULES: dict[str, Callable[[Any], Update]] = {
    "SGD": sgd,
    "Adagrad": adagrad,
    "AdagradDecay": adagrad_decay,
    "AdagradDecayV2": adagrad_decay,
    "Adam": adam,
    "AdamAsync": adam_async,
    "AdamW": adam_w,
    "Adamax": adamax,
    "Adadelta": adadelta,
    "RMSprop": rmsprop,
    "Ftrl": ftrl,
}


def update_of(optimizer: es.optimizers.Optimizer) -> tuple[Update, list[float]]:
    """Returns an optimizer's rule and its slots' initial values."""
    accumulator = getattr(optimizer, "initial_accumulator_value", 0.0)
    later_slots = [0.0] * (len(optimizer.slots) - 1)
    slots = [accumulator, *later_slots] if optimizer.slots else []
    return _RULES[type(optimizer).__name__](optimizer), slots


# An optimizer for each rule, and for each variant of a rule.
EVERY_RULE = [
    es.optimizers.SGD(0.1),
    es.optimizers.Adagrad(0.1),
    es.optimizers.AdagradDecay(0.1, 0.1, 3, 0.5),
    es.optimizers.AdagradDecayV2(0.1, 0.1, 3, 0.5),
    es.optimizers.Adam(0.01),
    es.optimizers.AdamAsync(0.01),
    es.optimizers.AdamAsync(0.01, apply_sparse_rmsprop=True),
    es.optimizers.AdamW(0.05, learning_rate=0.01),
    es.optimizers.Adamax(0.01),
    es.optimizers.Adadelta(0.5),
    es.optimizers.RMSprop(0.01),
    es.optimizers.RMSprop(0.01, momentum=0.7),
    es.optimizers.Ftrl(0.1, l1_regularization_strength=2.0, l2_regularization_strength=1e-5),
]
RULE_IDS = [f"{optimizer.name}-{i}" for i, optimizer in enumerate(EVERY_RULE)]


class _Powers:
    """The powers (beta1^t, beta2^t), computed as in the core: a product of t factors."""

    def __init__(self, beta1: float, beta2: float) -> None:
        self._betas = beta1, beta2
        self._powers = [(1.0, 1.0)]

    def __getitem__(self, t: int) -> tuple[float, float]:
        while len(self._powers) <= t:
            power1, power2 = self._powers[-1]
            self._powers.append((power1 * self._betas[0], power2 * self._betas[1]))
        return self._powers[t]


def _norm(row: Row) -> float:
    lanes = [0.0] * 8  # the core's order of summation, for any width of vector registers
    for i, value in enumerate(row.tolist()):
        lanes[i % 8] += value * value
    return math.sqrt(sum(lanes))
