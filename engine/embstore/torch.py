"""PyTorch modules over embedding variables: what flows back through them trains the variable.

    layer = embstore.torch.Embedding(var)
    loss = model(layer(ids)).sum()
    loss.backward()          # applies var's own optimizer to the rows of ids

A backward pass is one `apply_gradients` for each variable in it, however often and through
however many modules the variable was used, as it would be for a dense parameter. It comes when
autograd is through, so a pass that fails trains nothing. An error of a variable comes out of
`backward`; variables that were trained before it stay trained. There is no parameter to hand to
a torch optimizer, and `state_dict` holds no rows.

In eval mode, or where autograd is off, a forward is a serving lookup, without a gradient.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from embstore.errors import InvalidArgumentError, MissingLibraryError
from embstore.variable import EmbeddingVariable

try:
    import torch
except ImportError as error:
    raise MissingLibraryError(
        "embstore.torch needs PyTorch, which isn't installed; get it with: pip install torch"
    ) from error

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Embedding", "EmbeddingBag"]

_COMBINERS = ("sum", "mean", "sqrtn")


class Embedding(torch.nn.Module):
    """`torch.nn.Embedding` over a variable: int64 ids of any shape -> ids.shape + (dim,)."""

    def __init__(self, variable: EmbeddingVariable) -> None:
        super().__init__()
        self.variable = _check_variable(variable)

    def forward(self, ids: Tensor) -> Tensor:
        return _lookup(self.variable, ids, self.training)

    def extra_repr(self) -> str:
        return repr(self.variable)


class EmbeddingBag(torch.nn.Module):
    """Rows combined by bag, as `torch.nn.EmbeddingBag` takes them; an empty bag gives zeros.

    combiner: "sum"; "mean", the sum over the bag's number of ids; or "sqrtn", the sum over that
        number's square root, as TensorFlow has it.
    """

    def __init__(self, variable: EmbeddingVariable, combiner: str = "mean") -> None:
        super().__init__()
        self.variable = _check_variable(variable)
        if combiner not in _COMBINERS:
            raise InvalidArgumentError(f"combiner must be one of {_COMBINERS}, got {combiner!r}")
        self.combiner = combiner

    def forward(self, ids: Tensor, offsets: Tensor | None = None) -> Tensor:
        """Gives (bags, dim).

        ids: int64 (bags, length); or (n,) with `offsets`, int64 (bags,): where each bag starts.
        """
        _check_ids(ids)
        if ids.dim() == 2:
            if offsets is not None:
                raise InvalidArgumentError(
                    "offsets must be None where ids are 2-D: every row is a bag"
                )
            sums = _lookup(self.variable, ids, self.training).sum(dim=1)
            return self._scale(sums, torch.full((len(ids), 1), ids.shape[1], device=ids.device))
        if ids.dim() != 1:
            raise InvalidArgumentError(f"ids must be 1-D or 2-D, got {ids.dim()}-D")
        lengths = _bag_lengths(ids, offsets)
        rows = _lookup(self.variable, ids, self.training)
        bags = torch.repeat_interleave(
            torch.arange(len(lengths), device=ids.device), lengths, output_size=len(ids)
        )
        sums = rows.new_zeros(len(lengths), self.variable.dim).index_add(0, bags, rows)
        return self._scale(sums, lengths.unsqueeze(1))

    def _scale(self, sums: Tensor, lengths: Tensor) -> Tensor:
        if self.combiner == "sum":
            return sums
        divisor = lengths.clamp(min=1).to(sums.dtype)
        return sums / (divisor.sqrt() if self.combiner == "sqrtn" else divisor)

    def extra_repr(self) -> str:
        return f"{self.variable!r}, combiner={self.combiner!r}"


@dataclass(eq=False)
class _Pass:
    """What one backward pass has gathered for each variable: (forward number, ids, gradients)."""

    gathered: dict[EmbeddingVariable, list[tuple[int, Tensor, Tensor]]] = field(
        default_factory=dict
    )

    def apply(self) -> None:
        for variable, parts in self.gathered.items():
            parts.sort(key=lambda part: part[0])  # the order of the forwards, not autograd's
            ids = torch.cat([ids.reshape(-1) for _, ids, _ in parts])
            grads = torch.cat([grad.detach().reshape(-1, variable.dim) for _, _, grad in parts])
            variable.apply_gradients(ids.numpy(), grads.to("cpu", torch.float32).numpy())


# By autograd's number of the backward pass. Only the callback that ends a pass owns its entry, so
# a pass that fails, and never comes to its end, takes what it had gathered along.
_passes: weakref.WeakValueDictionary[int, _Pass] = weakref.WeakValueDictionary()
_passes_lock = threading.Lock()
_forward_numbers = itertools.count()


def _current_pass() -> _Pass:
    number = torch._C._current_graph_task_id()
    with _passes_lock:
        current = _passes.get(number)
        if current is None:
            current = _passes[number] = _Pass()
            torch.autograd.Variable._execution_engine.queue_callback(current.apply)
    return current


class _Lookup(torch.autograd.Function):
    """Rows of a variable, with a backward that hands their gradients to the pass."""

    @staticmethod
    def forward(ctx: Any, _anchor: Tensor, variable: EmbeddingVariable, ids: Tensor) -> Tensor:
        ctx.variable, ctx.ids, ctx.number = variable, ids, next(_forward_numbers)
        return _read(variable, ids, train=True)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None]:
        # The tensor itself, not a view: autograd may write into one that nobody else holds.
        _current_pass().gathered.setdefault(ctx.variable, []).append((ctx.number, ctx.ids, grad))
        return None, None, None


def _lookup(variable: EmbeddingVariable, ids: Tensor, training: bool) -> Tensor:
    _check_ids(ids)
    if training and torch.is_grad_enabled():
        # Autograd calls backward only where some input wants a gradient; the ids can't.
        anchor = torch.empty(0, requires_grad=True)
        rows: Tensor = _Lookup.apply(  # type: ignore[no-untyped-call]
            anchor, variable, ids.detach().cpu().clone()
        )
    else:
        rows = _read(variable, ids.detach().cpu(), train=False)
    return rows.to(ids.device)


def _read(variable: EmbeddingVariable, ids: Tensor, train: bool) -> Tensor:
    return torch.from_numpy(variable.lookup(ids.numpy(), train=train))


def _check_variable(variable: object) -> EmbeddingVariable:
    if not isinstance(variable, EmbeddingVariable):
        raise InvalidArgumentError(
            "variable must be an embstore.EmbeddingVariable (see get_embedding_variable), "
            f"got {type(variable).__name__}"
        )
    return variable


def _check_ids(ids: object) -> None:
    if not isinstance(ids, torch.Tensor) or ids.dtype != torch.int64:
        got = ids.dtype if isinstance(ids, torch.Tensor) else type(ids).__name__
        raise InvalidArgumentError(
            f"ids must be an int64 tensor, got {got}; convert with ids.long()"
        )


def _bag_lengths(ids: Tensor, offsets: Tensor | None) -> Tensor:
    if not isinstance(offsets, torch.Tensor) or offsets.dim() != 1 or offsets.dtype != torch.int64:
        raise InvalidArgumentError(
            "offsets must be a 1-D int64 tensor where ids are 1-D: where each bag starts"
        )
    ends = torch.cat((offsets[1:], offsets.new_tensor([len(ids)])))
    lengths = ends - offsets
    if len(offsets) == 0 and len(ids) > 0:
        raise InvalidArgumentError(f"offsets is empty, but there are {len(ids)} ids")
    if len(offsets) > 0 and (int(offsets[0]) != 0 or bool((lengths < 0).any())):
        raise InvalidArgumentError(
            f"offsets must start at 0 and ascend to at most {len(ids)}, the number of ids"
        )
    return lengths[: len(offsets)]
