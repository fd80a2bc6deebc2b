"""Training that can stop at any step and resume to the same bits."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR

from benchmarks.checkpoint_io.checkpoint import Checkpoint
from benchmarks.checkpoint_io.images import Images
from benchmarks.checkpoint_io.models import make_model
from pmemlab.workloads.batches import DataError
from pmemlab.workloads.reproducible_torch import make_reproducible
from pmemlab.workloads.run import DivergedError

__all__ = ["Trainer"]

_MODEL, _OPTIMIZER, _GENERATOR, _LOSSES = "model", "optimizer", "generator", "losses"
_SCHEDULE_STEPS: Final = 200


class Trainer:
    """A model, its optimizer (SGD with momentum), its schedule, PyTorch's generator and the losses.

    The generator is global to the process, so use one trainer at a time.
    """

    def __init__(self, model_name: str, images: Images, *, batch_size: int, seed: int) -> None:
        make_reproducible(seed)
        self.model_name = model_name
        self.model = make_model(model_name)
        self.losses: list[float] = []
        self._images = images
        self._batch_size = batch_size
        self._optimizer = SGD(self.model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        self._schedule = CosineAnnealingLR(self._optimizer, T_max=_SCHEDULE_STEPS)

    @property
    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def step(self) -> float:
        """Train on one batch; returns its loss. Raises DivergedError."""
        images, labels = self._images.draw(self._batch_size)
        self._optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._schedule.step()
        self.losses.append(float(loss.detach()))
        if not math.isfinite(self.losses[-1]):
            raise DivergedError(f"step {len(self.losses)}: the loss is {self.losses[-1]}")
        return self.losses[-1]

    def checkpoint(self) -> Checkpoint:
        """Returns all state that the next step depends on. The tensors are training's own, not
        copies.
        """
        tensors: dict[str, Tensor] = {
            f"{_MODEL}/{name}": tensor for name, tensor in self.model.state_dict().items()
        }
        optimizer = self._optimizer.state_dict()
        for number, of_parameter in optimizer["state"].items():
            for name, value in of_parameter.items():
                if value is not None:  # no momentum before the first step
                    tensors[f"{_OPTIMIZER}/{number}/{name}"] = value
        tensors[_GENERATOR] = torch.get_rng_state()
        tensors[_LOSSES] = torch.tensor(self.losses, dtype=torch.float64)
        scalars = {
            **self._required_settings(),
            "step": len(self.losses),
            "optimizer": optimizer["param_groups"],
            "schedule": self._schedule.state_dict(),
        }
        return Checkpoint(tensors, scalars)

    def resume(self, checkpoint: Checkpoint) -> None:
        """Resume from a copy of `checkpoint`. Raises DataError if it is of another training."""
        for name, expected in self._required_settings().items():
            found = checkpoint.scalars.get(name)
            if found != expected:
                raise DataError(
                    f"the checkpoint is of training with {name} {found!r}, this is {expected!r}: "
                    "it can't go on to the same bits"
                )
        model: dict[str, Tensor] = {}
        state: dict[int, dict[str, Tensor]] = {}
        for path, tensor in checkpoint.tensors.items():
            kind, _, name = path.partition("/")
            if kind == _MODEL:
                model[name] = tensor
            elif kind == _OPTIMIZER:
                number, _, slot = name.partition("/")
                state.setdefault(int(number), {})[slot] = tensor.clone()
        self.model.load_state_dict(model)
        groups: Any = checkpoint.scalars["optimizer"]
        self._optimizer.load_state_dict({"state": state, "param_groups": groups})
        self._schedule.load_state_dict(dict(checkpoint.scalars["schedule"]))
        torch.set_rng_state(checkpoint.tensors[_GENERATOR].clone())
        self.losses = checkpoint.tensors[_LOSSES].tolist()

    def _required_settings(self) -> dict[str, object]:
        """Returns the settings that must be equal to get the same bits."""
        return {
            "model": self.model_name,
            "batch_size": self._batch_size,
            "images_sha256": self._images.sha256,
        }
