"""Look-ups in autograd's graph. Their gradients gather for an optimizer, or train rows at once."""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from embstore.errors import InvalidArgumentError, UnsupportedError
from embstore.graph_breaks import outside_of_graphs
from embstore.table.checks import NotFiniteError
from embstore.table.many import look_up_bags, lookup_many
from embstore.torch import replicas
from embstore.torch.bags import Bags
from embstore.torch.rows import (
    GradientPart,
    Rows,
    apply_all,
    are_on_gpu_of_rows,
    join_parts,
    rows_of,
)
from embstore.variable import EmbeddingVariable

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Request", "current_pass", "lookup"]


class Request(NamedTuple):
    """The look-up of one module in one variable."""

    module: torch.nn.Module  # its parameter `rows` is the variable's `Rows`
    variable: EmbeddingVariable
    ids: Tensor  # int64 of any shape
    training: bool
    padding_idx: int | None = None  # an id that gets no gradient
    # The argument `count` of `EmbeddingVariable.lookup`, for look-ups without gradients.
    counts: bool = True
    # How the rows are combined. Its `refusal` is 0, or a Refusal, and then no row is trained.
    bags: Bags | None = None

    @property
    def result_count(self) -> int:
        """The number of rows or bags in the result: the first item of its shape."""
        if self.bags is None or self.bags.offsets is None:
            return self.ids.shape[0]
        return self.bags.offsets.shape[0]


@outside_of_graphs
def lookup(requests: Sequence[Request]) -> list[Tensor]:
    """Returns the rows of each request, ids.shape + (dim,), or its bags, (bags, dim), on the ids'
    device and in the dtype of `Rows`. Requests with ids on one GPU are looked up as one step.
    """
    # Requests are grouped by whether they are trained, and whether they count accesses.
    groups: dict[tuple[bool, bool], list[int]] = {}
    all_rows = [rows_of(request.variable) for request in requests]
    for number, (request, rows) in enumerate(zip(requests, all_rows, strict=True)):
        _check_is_parameter(rows, request.module)
        is_trained = request.training and rows.requires_grad and torch.is_grad_enabled()
        groups.setdefault((is_trained, is_trained or request.counts), []).append(number)
    found: dict[int, Tensor] = {}
    for (is_trained, count), members in groups.items():
        reads = [
            _Read.from_request(requests[number], all_rows[number], is_trained) for number in members
        ]
        values: Sequence[Tensor]
        if is_trained:
            for read in reads:
                read.rows.watch(_note_accumulated)
            values = _Lookup.apply(reads, *(read.rows for read in reads))  # type: ignore[no-untyped-call]
        else:
            values = _rows_or_bags(reads, count=count)
        found.update(zip(members, values, strict=True))
    results = []
    for number, (request, rows) in enumerate(zip(requests, all_rows, strict=True)):
        ids, bags = request.ids, request.bags
        result = found[number].to(ids.device, rows.dtype)
        if bags is not None and bags.weights is not None:  # the weights may have gradients
            result = bags.combine(ids, result)
        results.append(result)
    return results


def _check_is_parameter(rows: Rows, module: torch.nn.Module) -> None:
    """Raises UnsupportedError if another tensor has taken the place of the module's `rows`."""
    # vars() is quick: hasattr of a module or a tensor takes long to find that there is none.
    if vars(module).get("_is_replica", False):  # DataParallel's replicas have no parameters
        return
    # FSDP marks the parameters that it has flattened but still holds.
    if module._parameters.get("rows") is not rows or vars(rows).get("_fsdp_flattened", False):
        raise UnsupportedError(
            f"{rows.variable.name}: FullyShardedDataParallel, fully_shard, a parametrization or "
            "the like has taken the parameter rows of its module, and can't train a table by it; "
            "leave the module out (of FSDP by ignored_modules, of fully_shard by ignored_params) "
            "and wrap it in DistributedDataParallel, or let the processes share the table by "
            "embstore.cluster"
        )


class _Read(NamedTuple):
    """A request whose ids have been moved to a device that the variable can read them from."""

    rows: Rows
    ids: Tensor
    padding_idx: int | None
    refusal: Tensor | None
    bags: Bags | None  # the bags that the look-up itself combines: those without weights
    group: replicas.Replicas | None

    @classmethod
    def from_request(cls, request: Request, rows: Rows, is_trained: bool) -> _Read:
        variable, ids = request.variable, request.ids
        if is_trained:  # a copy: the update needs the ids as they are now
            ids = ids.clone()
        if not ids.is_cpu and not are_on_gpu_of_rows(variable, ids):
            ids = ids.cpu()
        bags, refusal = request.bags, None
        if bags is not None:
            refusal = bags.refusal
            bags = None if bags.weights is not None else bags.on_device_of(ids)
        if is_trained and bags is not None:
            bags = bags.with_own_offsets()
        return cls(rows, ids, request.padding_idx, refusal, bags, replicas.current(variable))


class _Lookup(torch.autograd.Function):
    """Looks up rows or bags. Its backward gives the rows' gradients to the running pass."""

    @staticmethod
    def forward(ctx: Any, reads: Sequence[_Read], *_rows: Rows) -> tuple[Tensor, ...]:
        ctx.reads = reads
        ctx.numbers = [next(_forward_numbers) for _ in reads]
        ctx.set_materialize_grads(False)  # rows without a gradient aren't trained
        return tuple(_rows_or_bags(reads, train=True))

    @staticmethod
    @torch.autograd.function.once_differentiable
    @outside_of_graphs
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        gathering = current_pass()
        row_grads: list[Tensor | None] = []
        for read, number, grad in zip(ctx.reads, ctx.numbers, grads, strict=True):
            if grad is None:
                row_grads.append(None)
                continue
            bags = read.bags
            if bags is not None:
                grad = bags.divide(read.ids, grad)
                if bags.are_single_ids(read.ids):
                    bags = None
            # The tensor itself, not a view: autograd may write into a tensor without other holders.
            gathering.add(
                read.rows,
                read.group,
                _Gathered(number, read.ids, grad, read.padding_idx, read.refusal, bags),
            )
            # The gradient of the parameter itself, which has no rows. It tells
            # DistributedDataParallel and the like that the parameter has been used.
            row_grads.append(torch.zeros_like(read.rows))
        return None, *row_grads


class _Gathered(NamedTuple):
    """The gradient of one look-up."""

    number: int
    ids: Tensor
    grad: Tensor
    padding_idx: int | None
    refusal: Tensor | None
    bags: Bags | None = None  # `grad` is that of their sums


def _holders(gathered: _Gathered) -> tuple[int, int] | None:
    """Returns the reference counts of the gradient and of its memory, or None if this PyTorch has
    no function for the second.
    """
    use_count = getattr(torch._C, "_storage_Use_Count", None)
    if use_count is None:
        return None
    storage = gathered.grad.untyped_storage()._cdata
    return sys.getrefcount(gathered.grad), use_count(storage)


# The counts of a gradient that has no other holder.
_MIN_HOLDERS = _holders(_Gathered(0, torch.empty(0), torch.empty(1), None, None))


@dataclass(eq=False)
class _Pass:
    """The gradients that one backward pass has gathered."""

    parts: dict[Rows, list[_Gathered]] = field(default_factory=dict)
    groups: dict[Rows, replicas.Replicas] = field(default_factory=dict)
    accumulated: set[Rows] = field(default_factory=set)  # with an accumulated gradient
    is_scaled: bool = False  # whether a GradScaler scaled the loss

    def add(self, rows: Rows, group: replicas.Replicas | None, part: _Gathered) -> None:
        self.parts.setdefault(rows, []).append(part)
        if group is not None:
            self.groups[rows] = group

    @outside_of_graphs  # autograd calls it, even if the call of backward() is compiled
    def end(self) -> None:
        # Ordered by name: replicas wait for each other, so all must take variables in one order.
        ordered = sorted(self.parts, key=lambda rows: rows.variable.name)
        for rows in ordered:
            _check_trains(rows, rows in self.accumulated, self.is_scaled)
            if rows not in self.groups:
                replicas.check_trains_all_replicas(rows.variable)
        # Checks and hooks may raise, so they run before anything is gathered or trained.
        parts = {rows: self._joined_part(rows) for rows in ordered}
        at_once: list[tuple[EmbeddingVariable, GradientPart]] = []
        for rows, part in parts.items():
            group = self.groups.get(rows)
            if group is not None and group.synchronizes:
                part = group.mean(join_parts([*rows.take_unreduced_parts(), part]))
            if rows.gathers:
                rows.add_part(part)
            elif part.is_reduced:
                at_once.append((rows.variable, part))
            else:
                raise InvalidArgumentError(
                    f"{rows.variable.name}: in no_sync() its replicas would be trained apart, "
                    "since a backward pass trains at once; make an embstore.torch.Optimizer, "
                    "which gathers"
                )
        try:
            apply_all(at_once)
        except NotFiniteError as error:
            raise InvalidArgumentError(
                f"{error}. A backward pass trains rows at once, which an inf or nan gradient would "
                "be the loss of; with torch.amp.GradScaler make an embstore.torch.Optimizer, which "
                "can leave out a step"
            ) from error

    def _joined_part(self, rows: Rows) -> GradientPart:
        group = self.groups.get(rows)
        part = join_parts([_gradient_part(rows, gathered, group) for gathered in self.parts[rows]])
        return rows.run_hooks(part)


def _check_trains(rows: Rows, is_accumulated: bool, is_scaled: bool) -> None:
    name = rows.variable.name
    if not is_accumulated:
        raise InvalidArgumentError(
            f"{name}: its rows have no gradient that torch.autograd.grad could return; call "
            "backward(), or give it dense parameters alone: embstore.torch.dense_parameters(model)"
        )
    if rows.trained_by is not None and rows.trained_by() is None:
        raise InvalidArgumentError(
            f"{name}: the embstore.torch.Optimizer that trained it is gone, so nothing would come "
            "of its gradients; make another, or set requires_grad of its Rows to False"
        )
    if is_scaled and not rows.gathers:
        raise InvalidArgumentError(
            f"{name}: a backward pass would train its rows at once, by gradients that "
            "torch.amp.GradScaler had scaled; make an embstore.torch.Optimizer before it, which "
            "divides them by the scale"
        )


def _gradient_part(
    rows: Rows, gathered: _Gathered, group: replicas.Replicas | None
) -> GradientPart:
    ids, bags, keep_mask = gathered.ids, gathered.bags, None
    grads = gathered.grad.detach().reshape(-1, rows.variable.dim).to(torch.float32)
    holders = _holders(gathered)
    if rows.gathers and (holders is None or holders != _MIN_HOLDERS):
        grads = grads.clone()  # its other holders may write into it before the step
    if bags is None:
        ids = ids.reshape(-1)
        if gathered.padding_idx is not None:
            keep_mask = ids != gathered.padding_idx
    part = GradientPart(
        gathered.number,
        ids,
        grads,
        is_reduced=group is None,
        keep_mask=keep_mask,
        refusal=gathered.refusal,
        bags=bags,
    )
    # resolved() waits for a GPU, but replicas have to exchange their numbers of ids anyway.
    return part if group is None else part.spread_to_ids().resolved(rows.variable.name)


# The running passes by autograd's numbers. Only the callback that ends a pass owns its entry, so
# the gradients of a pass that fails, and never calls it, are freed with the pass.
_passes: weakref.WeakValueDictionary[int, _Pass] = weakref.WeakValueDictionary()
_passes_lock = threading.Lock()
_forward_numbers = itertools.count()


def current_pass() -> _Pass:
    """Returns the backward pass in which this is called."""
    number = torch._C._current_graph_task_id()
    with _passes_lock:
        current = _passes.get(number)
        if current is None:
            current = _passes[number] = _Pass()
            torch.autograd.Variable._execution_engine.queue_callback(current.end)
    return current


def _note_accumulated(rows: Tensor) -> None:
    """Notes that a backward pass accumulated the Rows' gradient; torch.autograd.grad never does."""
    assert isinstance(rows, Rows)
    current_pass().accumulated.add(rows)


def _rows_or_bags(
    reads: Sequence[_Read], *, train: bool = False, count: bool = True
) -> list[Tensor]:
    """Returns each read's rows, or one row for each of its bags, on the device of its ids."""
    if (bags := _sum_bags_in_core(reads, train, count)) is not None:
        return bags
    found = lookup_many(
        [read.rows.variable for read in reads],
        [read.ids.numpy() if read.ids.is_cpu else read.ids for read in reads],
        train=train,
        count=count,
    )
    tensors = []
    for read, rows in zip(reads, found, strict=True):
        tensor = torch.from_numpy(rows) if read.ids.is_cpu else rows
        tensors.append(tensor if read.bags is None else read.bags.combine(read.ids, tensor))
    return tensors


def _sum_bags_in_core(reads: Sequence[_Read], train: bool, count: bool) -> list[Tensor] | None:
    """Returns the bags of all reads if the core can sum them as it looks rows up, while one
    variable's rows are in the processor's cache; else None.
    """
    ids_and_bags = [
        (read.ids, read.bags)
        for read in reads
        if read.bags is not None and read.ids.is_cpu and read.refusal is None
    ]
    if len(ids_and_bags) != len(reads):
        return None
    if all(bags.are_single_ids(ids) for ids, bags in ids_and_bags):  # there is nothing to sum
        return None
    sums = look_up_bags(
        [read.rows.variable for read in reads],
        [ids.reshape(-1).numpy() for ids, _ in ids_and_bags],
        [bags.for_core(ids) for ids, bags in ids_and_bags],
        train=train,
        count=count,
    )
    if sums is None:
        return None
    return [
        bags.divide(ids, torch.from_numpy(bag_sums))
        for (ids, bags), bag_sums in zip(ids_and_bags, sums, strict=True)
    ]
