"""Marks backward passes that start at a loss that a torch.amp.GradScaler scaled.

A pass that trains at once must refuse scaled gradients, but PyTorch tells neither the pass nor an
optimizer that a loss was scaled. Importing this module patches `GradScaler.scale` to mark the pass.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from embstore.graph_breaks import outside_of_graphs
from embstore.torch.lookup import current_pass

if TYPE_CHECKING:
    from torch import Tensor

__all__: list[str] = []

_scale = torch.amp.GradScaler.scale


@outside_of_graphs  # as the original
@functools.wraps(_scale)
def _scale_and_watch(scaler: torch.amp.GradScaler, outputs: Any) -> Any:
    scaled = _scale(scaler, outputs)
    return _watched(scaled) if scaler.is_enabled() else scaled


def _watched(scaled: Any) -> Any:
    """Hooks into what `scale` returned: a tensor, or a list, tuple or iterator of tensors."""
    if isinstance(scaled, torch.Tensor):
        if scaled.requires_grad:
            scaled.register_hook(_note_scaled)  # type: ignore[no-untyped-call]
        return scaled
    watched = map(_watched, scaled)
    return type(scaled)(watched) if isinstance(scaled, (list, tuple)) else watched


def _note_scaled(_grad: Tensor) -> None:
    current_pass().is_scaled = True


torch.amp.GradScaler.scale = _scale_and_watch  # type: ignore[assignment,method-assign]
