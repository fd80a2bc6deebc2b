"""Checks at each step of a torch optimizer that it holds no rows of an embstore.torch.Optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from embstore.errors import InvalidArgumentError
from embstore.torch.optimizer import Optimizer
from embstore.torch.rows import Rows

__all__: list[str] = []


def _check_step(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
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


register_optimizer_step_pre_hook(_check_step)
