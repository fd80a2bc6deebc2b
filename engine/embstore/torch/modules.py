"""`torch.nn`'s embedding modules over a variable."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from embstore._core import may_begin
from embstore.errors import InvalidArgumentError, UnsupportedError
from embstore.graph_breaks import outside_of_graphs
from embstore.table import checks
from embstore.table.given import a_variable
from embstore.torch.bags import MODES, Bags
from embstore.torch.lookup import Request, lookup
from embstore.torch.rows import Refusal, Rows, rows_lie_with, rows_of
from embstore.variable import EmbeddingVariable

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

__all__ = ["Embedding", "EmbeddingBag", "as_ids", "check_runs", "check_weights"]


class _OfVariable(torch.nn.Module):
    """What both modules have: the variable, and its `Rows` as the only parameter."""

    # Look-ups in eval mode are an evaluation's, which neither count for the ranking of rows nor
    # move any. To be set where the model serves.
    serves = False

    def __init__(self, variable: EmbeddingVariable, padding_idx: int | None) -> None:
        super().__init__()
        if padding_idx is not None:
            padding_idx = checks.integer("padding_idx", padding_idx, at_least=checks.INT64_MIN)
        self.variable = a_variable(variable)
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
        """Returns them as int64, if they have values to look up."""
        ids = as_ids("ids", ids)
        if ids.is_meta and not rows_lie_with(self.variable, ids):
            raise InvalidArgumentError(
                "ids must have values, got a tensor on the device meta, which has none; make them "
                "on the CPU or a GPU"
            )
        return ids

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Converts `rows` in place, whatever torch.__future__ says: a conversion that put another
        parameter there, or swapped what is in this one, would part it from its variable.
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
                self._parameters[name] = None  # keeps its place among them
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
        """Leaves out `rows`, which `embstore.save` saves. A derived class may have more state."""
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
        """Takes no `rows`: they are an unexpected key, and none is missing."""
        of_rows = self._keys_of_rows(prefix)
        for key in of_rows:
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
        missing_keys[:] = [key for key in missing_keys if key not in of_rows]

    def _keys_of_rows(self, prefix: str) -> list[str]:
        """A derived class may have them by another name, too."""
        return [
            prefix + name
            for name, parameter in self._parameters.items()
            if isinstance(parameter, Rows)
        ]

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.variable!r}{padding}"


class Embedding(_OfVariable):
    """`torch.nn.Embedding` over a variable: ids of any shape -> ids.shape + (dim,).

    padding_idx: an id whose row reads as it is and gets no gradient; any id, a negative one too,
        is itself.

    In eval mode a forward pass is an evaluation: it neither counts for the ranking of rows nor
    moves any. Where the model serves, set `serves` to True.
    """

    def __init__(self, variable: EmbeddingVariable, padding_idx: int | None = None) -> None:
        super().__init__(variable, padding_idx)

    def forward(self, ids: Tensor) -> Tensor:
        """ids: int64 or int32."""
        check_runs(self)
        (rows,) = lookup([self._request(self._ids(ids))])
        return rows


class EmbeddingBag(_OfVariable):
    """Rows combined by bag, as `torch.nn.EmbeddingBag` takes them; an empty bag gives zeros.

    mode: "sum"; "mean", the sum over the bag's number of ids; or "sqrtn", the sum over that
        number's square root, as TensorFlow has it.
    padding_idx: an id that is left out of its bag, of the number of ids too.
    include_last_offset: whether offsets have one more, the number of ids.

    `serves` is as for `Embedding`.
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
        """Gives (bags, dim).

        ids: int64 or int32 (bags, length); or (n,) with `offsets`, int64 or int32 (bags,): where
            each bag starts. Of wrong offsets with ids on the GPU that has the rows, all bags are
            nan and no row is trained; what the variable is asked for after the update raises why.
        per_sample_weights: floats of ids.shape, by which rows are multiplied; for mode "sum". They
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
        """Returns what to look up for what `forward` takes."""
        ids = self._ids(ids)
        if per_sample_weights is not None:
            self._check_weights(ids, per_sample_weights)
        refused = None
        if ids.dim() == 2:
            if offsets is not None:
                raise InvalidArgumentError(
                    "offsets must be None where ids are 2-D: every row is a bag"
                )
        elif ids.dim() == 1:
            offsets, refused = self._offsets(ids, offsets)
        else:
            raise InvalidArgumentError(f"ids must be 1-D or 2-D, got {ids.dim()}-D")
        bags = Bags(self.mode, offsets, per_sample_weights, self.padding_idx, refused)
        return self._request(ids, bags)

    def _offsets(self, ids: Tensor, offsets: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Returns where each bag begins, and where only the GPU can know whether that can be, a
        Refusal or 0, int64 (1,).
        """
        offsets = _as_offsets(offsets)
        (id_count,), (offset_count,) = ids.shape, offsets.shape
        with_last = self.include_last_offset
        if with_last and offset_count == 0:
            raise InvalidArgumentError("offsets must have the number of ids at least")
        bag_count = offset_count - with_last
        if bag_count == 0 and id_count > 0:
            raise InvalidArgumentError(f"offsets has no bag, but there are {id_count} ids")
        begins = offsets[:bag_count] if with_last else offsets
        if offset_count == 0:
            return begins, None
        if offsets.device == ids.device and rows_lie_with(self.variable, ids):
            wrong = _are_wrong(offsets, id_count, with_last)
            return begins.masked_fill(wrong, 0), wrong.long() * Refusal.OFFSETS.value
        _check_offsets(offsets, id_count, with_last)
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


# Not in the oldest PyTorch that serves.
_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)


def check_runs(module: Embedding | EmbeddingBag) -> None:
    """Raises UnsupportedError where a look-up would only be recorded or transformed."""
    name = module.variable.name
    compiled = torch.compiler.is_compiling()  # it leaves the look-up to Python
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
    """Returns them as int64; raises InvalidArgumentError, with the name, for what isn't so."""
    if not isinstance(ids, torch.Tensor) or ids.dtype not in (torch.int64, torch.int32):
        got, how = type(ids).__name__, f"torch.as_tensor({name})"
        if isinstance(ids, torch.Tensor):
            got, how = str(ids.dtype), f"{name}.long()"
        raise InvalidArgumentError(
            f"{name} must be an int64 or int32 tensor, got {got}; convert with {how}"
        )
    _check_dense(name, ids)
    return ids if ids.dtype is torch.int64 else ids.long()


def check_weights(name: str, weights: object, shape: torch.Size, of: str) -> None:
    """Raises InvalidArgumentError, with the name, unless they are floats, one for each of `of`."""
    if not isinstance(weights, torch.Tensor) or not weights.is_floating_point():
        raise InvalidArgumentError(f"{name} must be a tensor of floats")
    _check_dense(name, weights)
    if weights.shape != shape:
        raise InvalidArgumentError(
            f"{name} must have the shape of {of}, {tuple(shape)}, got {tuple(weights.shape)}"
        )


def _check_dense(name: str, tensor: Tensor) -> None:
    if tensor.layout != torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise InvalidArgumentError(
            f"{name} must be a dense tensor, got a {kind} one; bags of various lengths are one "
            "dense tensor of ids and the offsets at which they start: EmbeddingBag takes both"
        )


def _as_offsets(offsets: Tensor | None) -> Tensor:
    if offsets is None:
        raise InvalidArgumentError(
            "offsets must say where each bag starts where ids are 1-D, got None"
        )
    offsets = as_ids("offsets", offsets).contiguous()
    if offsets.dim() != 1:
        raise InvalidArgumentError(f"offsets must be 1-D, got {offsets.dim()}-D")
    return offsets


def _are_wrong(offsets: Tensor, ids: int, ends_with_last: bool) -> Tensor:
    """Returns a bool (1,): whether bags of so many ids can't start there.

    ends_with_last: the last of offsets is where the last bag ends.
    """
    wrong = (offsets[:-1] > offsets[1:]).any() | (offsets[:1] != 0)
    last = offsets[-1:]
    return wrong | (last != ids if ends_with_last else last > ids)


@outside_of_graphs
def _check_offsets(offsets: Tensor, ids: int, ends_with_last: bool) -> None:
    """Raises InvalidArgumentError where `_are_wrong` says True, in a twentieth of the time."""
    array = offsets.cpu().numpy()
    if not may_begin(array, ids) or (ends_with_last and array.item(-1) != ids):
        to = "" if ends_with_last else "at most "
        raise InvalidArgumentError(
            f"offsets must start at 0 and ascend to {to}{ids}, the number of ids"
        )
