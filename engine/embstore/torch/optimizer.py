"""The optimizer that trains variables' rows at each step(), as PyTorch's train dense parameters."""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
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

_NO_BACKWARD_PASS = -1  # autograd's number outside of backward passes

Trained: TypeAlias = "torch.nn.Module | EmbeddingVariable | torch.nn.Parameter | dict[str, Any]"


def dense_parameters(model: torch.nn.Module) -> Iterator[torch.nn.Parameter]:
    """Returns the model's parameters without the `Rows`, for a dense torch optimizer."""
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgumentError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    return (parameter for parameter in model.parameters() if not isinstance(parameter, Rows))


class Optimizer(torch.optim.Optimizer):
    """Trains the variables of a model by their own optimizers at each `step()`.

    params: a module, whose variables are trained; a variable; several of either; or the argument of
        PyTorch's optimizers: `model.parameters()`, or groups of parameters such as
        [{"params": model.items.parameters(), "lr": 0.1}]. Dense parameters are ignored: give them
        to another optimizer by `dense_parameters(model)`.
    lr: the learning rate of all groups that have none of their own. None: each variable keeps its
        learning rate.

    As soon as the optimizer exists, backward passes no longer train rows: they gather gradients
    until `zero_grad()`. `step()` applies these in the order of the forward passes.

    `param_groups` has one group for each variable: its `Rows`, its `lr` and its `name`. If the `lr`
    has changed since the last step, it becomes the variable's `learning_rate`. Otherwise, if the
    `learning_rate` has changed, for example by a restore, it becomes the `lr`.

    `torch.amp.GradScaler` skips a step if a gradient is infinite, without waiting for the GPU that
    finds it: rows, slots and the optimizers' own state stay unchanged. `global_step` counts the
    step.

    `state_dict` has the learning rates and the global step. `embstore.save` saves rows and slots.
    """

    # With this, GradScaler calls step() even if a gradient is infinite, and sets the attributes
    # `found_inf`, a tensor, and `grad_scale`: a tensor to divide gradients by, or None.
    _step_supports_amp_scaling = True

    def __init__(self, params: Trained | Iterable[Trained], lr: float | None = None) -> None:
        groups = list(_groups_in(params))
        if not groups:
            raise InvalidArgumentError(
                "params has no embedding variable: no embstore.torch.Embedding or EmbeddingBag is "
                "in it, and no parameter of one"
            )
        groups = [{"lr": lr, **group} for group in groups]
        for group in groups:  # all are checked before the first one changes its variable
            _check_trainable(group)
        self._applied_rates: dict[Rows, float] = {}  # the lr that set each learning_rate
        # `rate_changes` of each variable when the step last read the state of its shards.
        self._seen_rate_changes: dict[Rows, int] = {}
        self._global_step = 0
        super().__init__(groups, {})

    @property
    def global_step(self) -> int:
        """The version that the next step gives to rows: the number of earlier steps, or of the
        applies of a variable if that is larger.

        Shards in other processes are asked for it before the first step and after a restore.
        """
        return max(
            self._global_step, *(rows.variable.internals.apply_count() for rows in self._all_rows())
        )

    @global_step.setter
    def global_step(self, value: int) -> None:
        self._global_step = checks.integer("global_step", value, at_least=0)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a variable by {"params": its `Rows`} and possibly its "lr"."""
        _check_group("param_group", param_group, {"params", "lr", "name"})
        params = list(_as_iterable(param_group["params"]))
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
            variable.learning_rate = _checked_rate(group)
        super().add_param_group(group)
        self._applied_rates[rows] = variable.learning_rate
        rows.trained_by = weakref.ref(self)

    @outside_of_graphs
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Applies the gathered gradients. Variables without gradients stay unchanged.

        closure: computes the loss and its gradients again before the step, which returns the loss.

        Raises InvalidArgumentError, and trains nothing, if a newer Optimizer exists for one of the
        variables: both would apply the same gradients. Raises the errors of
        `EmbeddingVariable.apply_gradients`; the error of one variable stops no other, but variables
        with shards in other processes are all trained or none. Gradients stay until `zero_grad()`.
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
            self._update_rate_and_step(group, rate)
        step = self._global_step
        try:
            apply_all(self._updates(), step, self._found_inf())
        except BaseException:
            self._forget_scaler()
            raise
        self._global_step = step + 1
        return loss

    @outside_of_graphs
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gathered gradients.

        set_to_none: ignored; rows that no batch has used have no gradient, not even zeros.
        """
        del set_to_none
        for rows in self._all_rows():
            rows.grad = None

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "global_step": self.global_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the group of each variable by its name, in any order.

        Raises InvalidArgumentError, and changes nothing, if the state belongs to other variables.
        """
        known = set(state_dict) if isinstance(state_dict, dict) else set()
        if not {"state", "param_groups", "global_step"} <= known:
            raise InvalidArgumentError(
                "state_dict must be of an embstore.torch.Optimizer, whose state has a global_step; "
                "load the state of a dense optimizer into that one"
            )
        step = checks.integer("state_dict['global_step']", state_dict["global_step"], at_least=0)
        groups = self._in_order_of_groups(state_dict)
        for group, own in zip(groups, self.param_groups, strict=True):
            _checked_rate({**group, "params": own["params"]})
        super().load_state_dict({**state_dict, "param_groups": groups})
        self._global_step = step
        # nan equals no rate, so the next step sets all learning rates to the loaded ones.
        self._applied_rates = dict.fromkeys(self._all_rows(), math.nan)

    def _in_order_of_groups(self, state_dict: dict[str, Any]) -> list[dict[str, Any]]:
        """Returns the groups of the state in the order of the optimizer's own."""
        saved: list[dict[str, Any]] = list(_as_iterable(state_dict["param_groups"]))
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
        # Groups with equal names are matched in their order.
        return [saved.pop([group["name"] for group in saved].index(name)) for name in names]

    def _updates(self) -> list[tuple[EmbeddingVariable, GradientPart]]:
        """Returns each variable's gathered gradient, divided by GradScaler's scale if `unscale_`
        hasn't done so. The gathered gradient itself stays unchanged: a step may be repeated.
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
                part = part._replace(grads=grads)
            updates.append((rows.variable, part))
        return updates

    def _found_inf(self) -> Tensor | None:
        """Returns GradScaler's `found_inf`, which isn't 0 if the step must be skipped. Returns None
        if no GradScaler calls step(), or if there are no gradients.
        """
        found_inf = getattr(self, "found_inf", None)
        return found_inf if isinstance(found_inf, torch.Tensor) else None

    def _forget_scaler(self) -> None:
        """Deletes GradScaler's attributes, which it does itself only after a step that succeeds."""
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
        """Returns the group's lr, which is checked (`_checked_rate`) only if it has changed."""
        (rows,) = group["params"]
        rate: float = group["lr"]
        return (
            rate
            if type(rate) is float and rate == self._applied_rates[rows]
            else _checked_rate(group)
        )

    def _update_rate_and_step(self, group: dict[str, Any], rate: float) -> None:
        (rows,) = group["params"]
        variable = rows.variable
        is_unchanged = variable.internals.rate_changes == self._seen_rate_changes.get(rows)
        if not is_unchanged or not variable.internals.is_remote:
            self._global_step = max(self._global_step, variable.internals.apply_count())
        if rate != self._applied_rates[rows]:
            self._applied_rates[rows] = variable.learning_rate = rate
        elif not is_unchanged:
            self._applied_rates[rows] = group["lr"] = variable.learning_rate
        self._seen_rate_changes[rows] = variable.internals.rate_changes


def _groups_in(params: Trained | Iterable[Trained]) -> Iterator[dict[str, Any]]:
    """Yields a group for each variable, with the options beside "params" of PyTorch's group."""
    seen: set[Rows] = set()
    for item in _as_iterable(params):
        options: dict[str, Any] = {}
        if isinstance(item, dict):
            options = {name: value for name, value in item.items() if name != "params"}
            _check_group("params", item, {"params", "lr"})
        for member in _as_iterable(item["params"]) if isinstance(item, dict) else [item]:
            for rows in _rows_in(member):
                if rows not in seen:
                    seen.add(rows)
                    yield {**options, "params": [rows]}


def _as_iterable(items: Any) -> Iterable[Any]:
    single = (torch.nn.Module, EmbeddingVariable, torch.Tensor, dict)
    return [items] if isinstance(items, single) or not isinstance(items, Iterable) else items


def _check_group(name: str, group: object, known: set[str]) -> None:
    """Raises InvalidArgumentError, with the argument's name, unless `group` is a valid group."""
    if not isinstance(group, dict):
        raise InvalidArgumentError(f"{name}: a group must be a dict, got {type(group).__name__}")
    if "params" not in group or set(group) - known:
        got = ", ".join(map(repr, group)) or "nothing"
        raise InvalidArgumentError(
            f'{name}: a group must have "params", and may have "lr", got {got}; the optimizer that '
            "the variable was made with says all else"
        )


def _check_trainable(group: dict[str, Any]) -> None:
    """Raises InvalidArgumentError if the group's variable can't be trained, or not with its lr."""
    if group["lr"] is not None:
        _checked_rate(group)
    group["params"][0].variable.internals.check_trainable()


def _checked_rate(group: dict[str, Any]) -> float:
    """Returns a group's lr. Raises InvalidArgumentError if its variable can't train with it."""
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
        "params must be a module, a variable, parameters, or several of these, got "
        f"{type(item).__name__}"
    )
