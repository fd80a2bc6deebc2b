"""The optimizer that trains variables' rows step by step, as PyTorch's train dense parameters."""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from embstore.errors import InvalidArgumentError
from embstore.graph_breaks import outside_of_graphs
from embstore.table import checks
from embstore.torch.rows import GradientPart, Rows, apply_all, rows_of
from embstore.variable import EmbeddingVariable

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Optimizer", "dense_parameters"]

_NO_BACKWARD_PASS = -1  # as autograd numbers them

Trained: TypeAlias = "torch.nn.Module | EmbeddingVariable | torch.nn.Parameter | dict[str, Any]"


def dense_parameters(model: torch.nn.Module) -> Iterator[torch.nn.Parameter]:
    """The model's parameters but the `Rows`: those for a dense torch optimizer."""
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgumentError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    return (parameter for parameter in model.parameters() if not isinstance(parameter, Rows))


class Optimizer(torch.optim.Optimizer):
    """Trains the variables of a model by their own optimizers, once a `step()`.

    of: a module, whose variables are trained; a variable; several of either; or what an optimizer
        of PyTorch's takes: `model.parameters()`, or groups of them as
        [{"params": model.items.parameters(), "lr": 0.1}]. Dense parameters among them are left to
        another optimizer, which gets them by `dense_parameters(model)`.
    lr: the learning rate of all, but of groups that have their own; where it isn't given, each
        variable keeps its own.

    From when it is made, backward passes gather the variables' gradients, until `zero_grad()`, in
    place of training at once. `step()` applies what has gathered, in the order of the forwards.

    `param_groups` has one group for each variable: its `Rows`, its `lr` and its `name`. An `lr`
    that was changed since the last step becomes the variable's `learning_rate`; else a
    `learning_rate` that was changed, by a restore for example, becomes the `lr`.

    `torch.amp.GradScaler` has `step()` left out where a gradient is infinite, without waiting for
    a GPU that knows: rows, their slots and what the variables' optimizers count stay as they are.
    The step counts in `global_step`.

    `state_dict` has the learning rates and the global step. Rows and their slots are saved by
    `embstore.save`.
    """

    # GradScaler then calls step() in any case, and sets as tensors `grad_scale`, by which gradients
    # are still to be divided, or None, and `found_inf`.
    _step_supports_amp_scaling = True

    def __init__(self, of: Trained | Iterable[Trained], lr: float | None = None) -> None:
        groups = list(_groups_in(of))
        if not groups:
            raise InvalidArgumentError(
                "of has no embedding variable: no embstore.torch.Embedding or EmbeddingBag is in "
                "it, and no parameter of one"
            )
        groups = [{"lr": lr, **group} for group in groups]
        for group in groups:  # before any variable is taken over
            _check_trainable(group)
        self._set_rates: dict[Rows, float] = {}  # the lr that each variable's rate came from
        # `_rate_changes` of each variable when its shards were last asked for what they keep.
        self._asked_at: dict[Rows, int] = {}
        self._global_step = 0
        super().__init__(groups, {})

    @property
    def global_step(self) -> int:
        """The version of the rows that the next step trains: how many steps came before it, or
        how many applies a variable had, where that is more.

        A step asks shards in other processes for that before the first step and after a restore.
        """
        return max(
            self._global_step, *(rows.variable.internals.applies() for rows in self._all_rows())
        )

    @global_step.setter
    def global_step(self, value: int) -> None:
        self._global_step = checks.integer("global_step", value, at_least=0)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Takes over another variable: {"params": its `Rows`}, and "lr" where it isn't its own."""
        _check_group("param_group", param_group, {"params", "lr", "name"})
        params = list(_several(param_group["params"]))
        if len(params) != 1 or not isinstance(params[0], Rows):
            raise InvalidArgumentError(
                "param_group: params must be the Rows of one variable, as an "
                "embstore.torch.Embedding has them; dense parameters are for an optimizer of "
                "torch.optim"
            )
        (rows,) = params
        variable = rows.variable
        if any(rows is own for own in self._all_rows()):
            raise InvalidArgumentError(
                f"param_group: {variable.name} has a group already; change that one's lr"
            )
        group = {"name": variable.name, "lr": None, **param_group, "params": params}
        _check_trainable(group)
        if group["lr"] is None:
            group["lr"] = variable.learning_rate
        else:
            variable.learning_rate = _rate_in(group)
        super().add_param_group(group)
        self._set_rates[rows] = variable.learning_rate
        rows.trained_by = weakref.ref(self)

    @outside_of_graphs
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Applies the gradients that have gathered; a variable without any isn't touched.

        closure: computes the loss again, with gradients, beforehand; its result is returned.

        Raises InvalidArgumentError, and trains nothing, where another Optimizer was made for one
        of the variables since: both would train it by the same gradients. Raises as
        `EmbeddingVariable.apply_gradients` does; the error of one variable stops no other, but
        variables with shards elsewhere are trained all together or not at all.
        Gradients stay until `zero_grad()`.
        """
        self._check_is_newest()
        if torch._C._current_graph_task_id() != _NO_BACKWARD_PASS:
            raise InvalidArgumentError(
                "step() was called within a backward pass, whose gradients gather when it ends; "
                "call it afterwards"
            )
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        rates = [self._rate_of(group) for group in self.param_groups]  # before any is set
        for group, rate in zip(self.param_groups, rates, strict=True):
            self._agree_on_rate_and_step(group, rate)
        step = self._global_step
        try:
            apply_all(self._updates(), step, self._left_out())
        except BaseException:
            self._forget_scaler()
            raise
        self._global_step = step + 1
        return loss

    @outside_of_graphs
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients that have gathered.

        set_to_none: makes no difference: of rows that no batch has named there is no gradient,
            not even one of zeros.
        """
        del set_to_none
        for rows in self._all_rows():
            rows.grad = None

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "global_step": self.global_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the group of each variable by its name, in whatever order the state has them.

        Raises InvalidArgumentError, and changes nothing, where the state is of other variables.
        """
        known = set(state_dict) if isinstance(state_dict, dict) else set()
        if not {"state", "param_groups", "global_step"} <= known:
            raise InvalidArgumentError(
                "state_dict must be of an embstore.torch.Optimizer, whose state has a global_step; "
                "load the state of a dense optimizer into that one"
            )
        step = checks.integer("state_dict['global_step']", state_dict["global_step"], at_least=0)
        groups = self._in_order(state_dict)
        for group, own in zip(groups, self.param_groups, strict=True):
            _rate_in({**group, "params": own["params"]})
        super().load_state_dict({**state_dict, "param_groups": groups})
        self._global_step = step
        # Whatever the variables train by: the next step sets the rates that were loaded.
        self._set_rates = dict.fromkeys(self._all_rows(), math.nan)

    def _in_order(self, state_dict: dict[str, Any]) -> list[dict[str, Any]]:
        """Returns the groups of the state in the order of the optimizer's own."""
        saved: list[dict[str, Any]] = list(_several(state_dict["param_groups"]))
        for group in saved:
            if not isinstance(group, dict) or not {"params", "lr"} <= set(group):
                raise InvalidArgumentError(
                    'state_dict["param_groups"] must be groups with "params" and "lr", as '
                    f"state_dict() has them, got {group!r}"
                )
        names = [group["name"] for group in self.param_groups]
        if len(saved) == len(names) and not any("name" in group for group in saved):
            return [{**group, "name": name} for group, name in zip(saved, names, strict=True)]
        own, others = Counter(names), Counter(group.get("name") for group in saved)
        if own != others:
            missing, unknown = (
                ", ".join(map(repr, names.elements())) or "none"
                for names in (own - others, others - own)
            )
            raise InvalidArgumentError(
                "state_dict must have a group for each variable that is trained: missing are "
                f"{missing}, not known are {unknown}; make the Optimizer of the variables that it "
                "was saved with"
            )
        # Of equal names the first to the first.
        return [saved.pop([group["name"] for group in saved].index(name)) for name in names]

    def _updates(self) -> list[tuple[EmbeddingVariable, GradientPart]]:
        """What has gathered. Where a GradScaler calls the step, and nobody called `unscale_`, it is
        divided by the scale; what has gathered stays as it is, so that a step may be tried again.
        """
        scale: Tensor | None = getattr(self, "grad_scale", None)
        inverse = None if scale is None else scale.double().reciprocal().float()  # as unscale_
        updates = []
        for rows in self._all_rows():
            part = rows.gathered(summed=inverse is not None)
            if part is None:
                continue
            if inverse is not None:
                grads = part.grads * inverse.to(part.grads.device, non_blocking=True)
                part = replace(part, grads=grads)
            updates.append((rows.variable, part))
        return updates

    def _left_out(self) -> Tensor | None:
        """A number that is 0 unless the step is to be left out; None where no GradScaler calls it,
        or where there are no gradients.
        """
        found_inf = getattr(self, "found_inf", None)
        return found_inf if isinstance(found_inf, torch.Tensor) else None

    def _forget_scaler(self) -> None:
        """As a GradScaler has it forgotten after a step that didn't raise."""
        for name in ("grad_scale", "found_inf"):
            if hasattr(self, name):
                delattr(self, name)

    def _check_is_newest(self) -> None:
        for rows in self._all_rows():
            if rows.trained_by is None or rows.trained_by() is not self:
                raise InvalidArgumentError(
                    f"{rows.variable.name}: another embstore.torch.Optimizer was made for it "
                    "since, and trains it by the same gradients; use that one alone"
                )

    def _all_rows(self) -> list[Rows]:
        return [rows for group in self.param_groups for rows in group["params"]]

    def _rate_of(self, group: dict[str, Any]) -> float:
        """As `_rate_in`; one that is as it was last set isn't checked again."""
        (rows,) = group["params"]
        rate: float = group["lr"]
        return rate if type(rate) is float and rate == self._set_rates[rows] else _rate_in(group)

    def _agree_on_rate_and_step(self, group: dict[str, Any], rate: float) -> None:
        (rows,) = group["params"]
        variable = rows.variable
        was_told = variable.internals.rate_changes == self._asked_at.get(rows)
        if not was_told or not variable.internals.is_elsewhere:
            self._global_step = max(self._global_step, variable.internals.applies())
        if rate != self._set_rates[rows]:
            self._set_rates[rows] = variable.learning_rate = rate
        elif not was_told:
            self._set_rates[rows] = group["lr"] = variable.learning_rate
        self._asked_at[rows] = variable.internals.rate_changes


def _groups_in(of: Trained | Iterable[Trained]) -> Iterator[dict[str, Any]]:
    """One for each variable, with what a group of PyTorch's says of it beside "params"."""
    seen: set[Rows] = set()
    for item in _several(of):
        options: dict[str, Any] = {}
        if isinstance(item, dict):
            options = {name: value for name, value in item.items() if name != "params"}
            _check_group("of", item, {"params", "lr"})
        for member in _several(item["params"]) if isinstance(item, dict) else [item]:
            for rows in _rows_in(member):
                if rows not in seen:
                    seen.add(rows)
                    yield {**options, "params": [rows]}


def _several(of: Any) -> Iterable[Any]:
    single = (torch.nn.Module, EmbeddingVariable, torch.Tensor, dict)
    return [of] if isinstance(of, single) or not isinstance(of, Iterable) else of


def _check_group(name: str, group: object, known: set[str]) -> None:
    """name: of the argument that has the group."""
    if not isinstance(group, dict):
        raise InvalidArgumentError(f"{name}: a group must be a dict, got {type(group).__name__}")
    if "params" not in group or set(group) - known:
        got = ", ".join(map(repr, group)) or "nothing"
        raise InvalidArgumentError(
            f'{name}: a group must have "params", and may have "lr", got {got}; the optimizer that '
            "the variable was made with says all else"
        )


def _check_trainable(group: dict[str, Any]) -> None:
    """Raises InvalidArgumentError where its variable can't be trained, or not by the group's lr."""
    if group["lr"] is not None:
        _rate_in(group)
    group["params"][0].variable.internals.check_trainable()


def _rate_in(group: dict[str, Any]) -> float:
    """A group's lr; raises InvalidArgumentError where its variable can't be trained by it."""
    (rows,) = group["params"]
    rate = group["lr"]
    if isinstance(rate, torch.Tensor) and rate.numel() == 1:
        rate = rate.item()
    try:
        return rows.variable.internals.check_trainable().check_learning_rate(rate)  # type: ignore[no-any-return]
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"lr of the group of {rows.variable.name}: {error}") from None


def _rows_in(item: Any) -> list[Rows]:
    if isinstance(item, torch.nn.Module):
        return [parameter for parameter in item.parameters() if isinstance(parameter, Rows)]
    if isinstance(item, EmbeddingVariable):
        return [rows_of(item)]
    if isinstance(item, torch.nn.Parameter):
        return [item] if isinstance(item, Rows) else []
    raise InvalidArgumentError(
        "of must be a module, a variable, parameters, or several of these, got "
        f"{type(item).__name__}"
    )
