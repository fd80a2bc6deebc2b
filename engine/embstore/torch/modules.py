"""`torch.nn`'s embedding modules, with an embedding variable in place of a weight matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from embstore._core import are_valid_offsets
from embstore.errors import InvalidArgumentError, UnsupportedError
from embstore.graph_breaks import outside_of_graphs
from embstore.table import checks
from embstore.table.variable_arguments import check_variable
from embstore.torch.bags import MODES, Bags
from embstore.torch.lookup import Request, lookup
from embstore.torch.rows import Refusal, Rows, are_on_gpu_of_rows, rows_of
from embstore.variable import EmbeddingVariable

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

__all__ = [
    "Embedding",
    "EmbeddingBag",
    "as_ids",
    "as_offsets",
    "check_offsets",
    "check_runs",
    "check_weights",
]


class _EmbeddingModule(torch.nn.Module):
    """The base of both modules: a variable, and its `Rows` as the only parameter."""

    # False: look-ups in eval mode evaluate the model; they neither count as accesses nor move rows
    # between tiers. Users set it to True in a process that serves.
    serves = False

    def __init__(self, variable: EmbeddingVariable, padding_idx: int | None) -> None:
        super().__init__()
        if padding_idx is not None:
            padding_idx = checks.integer("padding_idx", padding_idx, at_least=checks.INT64_MIN)
        self.variable = check_variable(variable)
        self.padding_idx = padding_idx
        self.rows = rows_of(variable)

    @property
    def embedding_dim(self) -> int:
        return self.variable.dim

    def _request(self, ids: Tensor, bags: Bags | None = None) -> Request:
        return Request(
            self,
            self.variable,
            ids,
            training=self.training,
            padding_idx=self.padding_idx,
            counts=self.training or self.serves,
            bags=bags,
        )

    def _ids(self, ids: object) -> Tensor:
        """Returns the ids as int64. Raises InvalidArgumentError unless they are a tensor of ids."""
        ids = as_ids("ids", ids)
        if ids.is_meta and not are_on_gpu_of_rows(self.variable, ids):
            raise InvalidArgumentError(
                "ids must have values, got a tensor on the device meta, which has none; make them "
                "on the CPU or a GPU"
            )
        return ids

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Converts `rows` in place, whatever torch.__future__ says. A conversion that replaced the
        parameter, or swapped its contents, would separate it from its variable.
        """
        own = {
            name: parameter
            for name, parameter in self._parameters.items()
            if isinstance(parameter, Rows)
        }
        with torch.no_grad():
            converted = {rows: fn(rows.data) for rows in set(own.values())}
        for data in converted.values():
            self._check_can_be_rows(data)
        try:
            for name in own:
                self._parameters[name] = None  # keeps the order of parameters
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        finally:
            self._parameters.update(own)
        for rows, data in converted.items():
            rows.data = data
        return self

    def _check_can_be_rows(self, data: Tensor) -> None:
        if data.is_meta or not data.is_floating_point():
            got = "the device meta" if data.is_meta else str(data.dtype)
            raise UnsupportedError(
                f"{self.variable.name}: its module can't be converted to {got}, since its rows lie "
                "in the tiers of this process, as floats; convert the other modules alone"
            )

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Saves all state but `rows`, which `embstore.save` saves."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for key in self._keys_of_rows(prefix):
            del destination[key]

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Loads all state but `rows`, which is an unexpected key if it is there."""
        row_keys = self._keys_of_rows(prefix)
        for key in row_keys:
            if state_dict.pop(key, None) is not None and strict:
                unexpected_keys.append(key)
        super()._load_from_state_dict(
            state_dict,
            prefix,
            local_metadata,
            strict,
            missing_keys,
            unexpected_keys,
            error_msgs,
        )
        missing_keys[:] = [key for key in missing_keys if key not in row_keys]

    def _keys_of_rows(self, prefix: str) -> list[str]:
        """Returns the keys of `Rows` in a state_dict. A subclass may have them by a second name."""
        return [
            prefix + name
            for name, parameter in self._parameters.items()
            if isinstance(parameter, Rows)
        ]

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.variable!r}{padding}"


class Embedding(_EmbeddingModule):
    """`torch.nn.Embedding` over a variable: ids of any shape give rows of shape ids.shape + (dim,).

    padding_idx: an id whose row gets no gradient. A negative value is an id like any other.

    In eval mode a forward pass evaluates the model: it neither counts as accesses nor moves rows
    between tiers. In a process that serves, set `serves` to True.
    """

    def __init__(self, variable: EmbeddingVariable, padding_idx: int | None = None) -> None:
        super().__init__(variable, padding_idx)

    def forward(self, ids: Tensor) -> Tensor:
        """Returns the rows of ids, which are int64 or int32."""
        check_runs(self)
        (rows,) = lookup([self.request(ids)])
        return rows

    def request(self, ids: Tensor) -> Request:
        """Checks the argument of `forward` and returns the look-up that it asks for."""
        return self._request(self._ids(ids))


class EmbeddingBag(_EmbeddingModule):
    """`torch.nn.EmbeddingBag` over a variable: combines the rows of each bag of ids. An empty bag
    gives zeros.

    mode: "sum"; "mean", the sum divided by the bag's number of ids; or "sqrtn", the sum divided by
        the square root of that number, as in TensorFlow.
    padding_idx: an id that is left out of the sum and of the number of ids.
    include_last_offset: whether `offsets` ends with one more item, the number of ids.

    For `serves`, see `Embedding`.
    """

    def __init__(
        self,
        variable: EmbeddingVariable,
        mode: str = "mean",
        padding_idx: int | None = None,
        include_last_offset: bool = False,
    ) -> None:
        super().__init__(variable, padding_idx)
        self.mode = checks.choice("mode", mode, MODES)
        self.include_last_offset = checks.flag("include_last_offset", include_last_offset)

    def forward(
        self,
        ids: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Returns the bags, (bags, dim).

        ids: int64 or int32 (bags, length); or (n,) with `offsets`.
        offsets: int64 or int32 (bags,), where each bag starts. If they are wrong and the ids are on
            the GPU that has the rows, all bags are nan, no row is trained, and the variable's first
            call after the update raises the reason.
        per_sample_weights: floats of ids.shape, by which rows are multiplied, for mode "sum". They
            get gradients, too.
        """
        check_runs(self)
        (bags,) = lookup([self.request(ids, offsets, per_sample_weights)])
        return bags

    def request(
        self,
        ids: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Request:
        """Checks the arguments of `forward` and returns the look-up that they ask for."""
        ids = self._ids(ids)
        if per_sample_weights is not None:
            self._check_weights(ids, per_sample_weights)
        refusal = None
        if ids.dim() == 2:
            if offsets is not None:
                raise InvalidArgumentError(
                    "offsets must be None where ids are 2-D: every row is a bag"
                )
        elif ids.dim() == 1:
            offsets, refusal = self._offsets(ids, offsets)
        else:
            raise InvalidArgumentError(f"ids must be 1-D or 2-D, got {ids.dim()}-D")
        bags = Bags(self.mode, offsets, per_sample_weights, self.padding_idx, refusal)
        return self._request(ids, bags)

    def _offsets(self, ids: Tensor, offsets: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Returns where each bag begins, and, if only the GPU can check that, an int64 (1,) there:
        0 or a Refusal.
        """
        with_last = self.include_last_offset
        offsets = as_offsets(offsets, with_last)
        (id_count,), (offset_count,) = ids.shape, offsets.shape
        bag_count = offset_count - with_last
        if bag_count == 0 and id_count > 0:
            raise InvalidArgumentError(f"offsets has no bag, but there are {id_count} ids")
        begins = offsets[:bag_count] if with_last else offsets
        if offset_count == 0:
            return begins, None
        if offsets.device == ids.device and are_on_gpu_of_rows(self.variable, ids):
            are_invalid = _are_invalid(offsets, id_count, with_last)
            return begins.masked_fill(are_invalid, 0), are_invalid.long() * Refusal.OFFSETS.value
        check_offsets(offsets, id_count, with_last)
        return begins, None

    def _check_weights(self, ids: Tensor, weights: Tensor) -> None:
        if self.mode != "sum":
            raise InvalidArgumentError(
                f'per_sample_weights must be None where mode is {self.mode!r}; mode="sum" takes '
                "them, as PyTorch's does"
            )
        check_weights("per_sample_weights", weights, ids.shape, "ids")

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode!r}"


# The oldest PyTorch that is supported doesn't have it.
_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)


def check_runs(module: Embedding | EmbeddingBag) -> None:
    """Raises UnsupportedError if torch.export, a trace or torch.func would record a look-up."""
    name = module.variable.name
    compiled = torch.compiler.is_compiling()  # torch.compile leaves look-ups to Python
    if _is_exporting() or (not compiled and torch._C._is_tracing()):
        raise UnsupportedError(
            f"{name}: torch.export and torch.jit.trace can't record look-ups, since the rows lie "
            "in the tiers of this process; look the rows up outside of what you export, or export "
            "a model with embstore.torch.to_torch(variable) in the module's place"
        )
    if not compiled and torch._C._are_functorch_transforms_active():
        raise UnsupportedError(
            f"{name}: torch.vmap, torch.func.grad and other transforms of torch.func can't look "
            "rows up; look them up before, and give the transformed function the rows"
        )


def as_ids(name: str, ids: object) -> Tensor:
    """Returns ids as int64. Raises InvalidArgumentError, with the name, unless they are a dense
    int64 or int32 tensor.
    """
    if not isinstance(ids, torch.Tensor) or ids.dtype not in (torch.int64, torch.int32):
        got, how = type(ids).__name__, f"torch.as_tensor({name})"
        if isinstance(ids, torch.Tensor):
            got, how = str(ids.dtype), f"{name}.long()"
        raise InvalidArgumentError(
            f"{name} must be an int64 or int32 tensor, got {got}; convert with {how}"
        )
    _check_dense(name, ids)
    return ids if ids.dtype is torch.int64 else ids.long()


def check_weights(name: str, weights: object, shape: torch.Size, shape_of: str) -> None:
    """Raises InvalidArgumentError, with the name, unless weights are floats of the given shape.

    shape_of: the name of the argument that has this shape.
    """
    if not isinstance(weights, torch.Tensor) or not weights.is_floating_point():
        raise InvalidArgumentError(f"{name} must be a tensor of floats")
    _check_dense(name, weights)
    if weights.shape != shape:
        raise InvalidArgumentError(
            f"{name} must have the shape of {shape_of}, {tuple(shape)}, got {tuple(weights.shape)}"
        )


def _check_dense(name: str, tensor: Tensor) -> None:
    if tensor.layout != torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise InvalidArgumentError(
            f"{name} must be a dense tensor, got a {kind} one; bags of various lengths are one "
            "dense tensor of ids and the offsets at which they start: EmbeddingBag takes both"
        )


def as_offsets(offsets: Tensor | None, ends_with_last: bool = False) -> Tensor:
    """Returns offsets as int64. Raises InvalidArgumentError unless they are integers (n,)."""
    if offsets is None:
        raise InvalidArgumentError(
            "offsets must say where each bag starts where ids are 1-D, got None"
        )
    offsets = as_ids("offsets", offsets).contiguous()
    if offsets.dim() != 1:
        raise InvalidArgumentError(f"offsets must be 1-D, got {offsets.dim()}-D")
    if ends_with_last and len(offsets) == 0:
        raise InvalidArgumentError("offsets must have the number of ids at least")
    return offsets


def _are_invalid(offsets: Tensor, ids: int, ends_with_last: bool) -> Tensor:
    """Returns a bool (1,): whether these can't be the offsets of bags with `ids` ids in all.

    ends_with_last: whether the last offset is the end of the last bag.
    """
    are_invalid = (offsets[:-1] > offsets[1:]).any() | (offsets[:1] != 0)
    last = offsets[-1:]
    return are_invalid | (last != ids if ends_with_last else last > ids)


@outside_of_graphs
def check_offsets(offsets: Tensor, ids: int, ends_with_last: bool) -> None:
    """Raises InvalidArgumentError for wrong offsets, in a twentieth of `_are_invalid`'s time."""
    array = offsets.cpu().numpy()
    if not are_valid_offsets(array, ids) or (ends_with_last and array.item(-1) != ids):
        to = "" if ends_with_last else "at most "
        raise InvalidArgumentError(
            f"offsets must start at 0 and ascend to {to}{ids}, the number of ids"
        )
