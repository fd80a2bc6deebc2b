"""What is checked whenever a torch optimizer takes a step: that none of them harms rows unseen."""

from __future__ import annotations

import sys
import threading
from types import CodeType, FrameType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from embstore.errors import InvalidArgumentError
from embstore.torch.optimizer import Optimizer
from embstore.torch.rows import Rows
from embstore.variable import EmbeddingVariable

__all__ = ["trained_at_once"]

# Names of the variables that backward passes trained since the last step of any optimizer.
_trained: set[str] = set()
_trained_lock = threading.Lock()


def trained_at_once(variable: EmbeddingVariable) -> None:
    with _trained_lock:
        _trained.add(variable.name)


def _check_step(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
    with _trained_lock:
        trained = sorted(_trained)
        _trained.clear()
    if trained and _scaler_that_steps() is not None:
        raise InvalidArgumentError(
            f"{', '.join(trained)}: a backward pass trained the rows at once, by gradients that "
            "torch.amp.GradScaler had scaled; make an embstore.torch.Optimizer, and restore the "
            "rows from a checkpoint"
        )
    if isinstance(optimizer, Optimizer):
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if isinstance(parameter, Rows) and parameter.gathers:
                raise InvalidArgumentError(
                    f"{type(optimizer).__name__} holds {parameter!r}, which an "
                    "embstore.torch.Optimizer trains; give it dense parameters alone: "
                    "embstore.torch.dense_parameters(model)"
                )


def _scaler_that_steps() -> torch.amp.GradScaler | None:
    """The GradScaler, if one called the step; a step isn't told."""
    step: CodeType = torch.amp.GradScaler.step.__code__
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return None
        if frame.f_code is step:
            scaler: torch.amp.GradScaler = frame.f_locals["self"]
            return scaler if scaler.is_enabled() else None
        frame = frame.f_back
    return None


_MOST_FRAMES = 12  # between: torch's own, and a scheduler's

register_optimizer_step_pre_hook(_check_step)
