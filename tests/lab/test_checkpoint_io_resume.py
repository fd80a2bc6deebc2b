"""Training that is saved, stopped, loaded and resumed reaches the same bits as without a stop."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checkpoints import make_format

from benchmarks.checkpoint_io.checkpoint import Checkpoint, check_same_bits
from benchmarks.checkpoint_io.errors import DifferentBytesError
from benchmarks.checkpoint_io.formats import FORMATS
from benchmarks.checkpoint_io.images import generated_images
from benchmarks.checkpoint_io.phases import PhaseClock
from benchmarks.checkpoint_io.training import Trainer
from pmemlab.workloads.batches import DataError

IMAGES = generated_images(64, seed=1)


def trainer(seed: int = 5, batch_size: int = 4, model: str = "tiny") -> Trainer:
    return Trainer(model, IMAGES, batch_size=batch_size, seed=seed)


def copied(checkpoint: Checkpoint) -> Checkpoint:
    return Checkpoint({n: t.clone() for n, t in checkpoint.tensors.items()}, checkpoint.scalars)


def trained_without_a_stop(steps: int) -> Checkpoint:
    straight = trainer()
    for _ in range(steps):
        straight.step()
    return copied(straight.checkpoint())


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "embstore"])
def test_two_steps_a_save_a_load_and_two_steps_equal_four_steps(name: str, tmp_path: Path) -> None:
    expected = trained_without_a_stop(4)
    assert len(expected.tensors["losses"]) == 4
    assert any(name.endswith("momentum_buffer") for name in expected.tensors)

    first = trainer()
    first.step()
    first.step()
    chosen = make_format(name, tmp_path)
    chosen.save(first.checkpoint(), PhaseClock())

    second = trainer(seed=99)  # different weights and generator state
    torch.rand(7)
    second.resume(chosen.load(PhaseClock()))
    second.step()
    second.step()
    check_same_bits(second.checkpoint(), expected)


@pytest.mark.parametrize("left_out", ["generator", "momentum_buffer", "running_mean", "schedule"])
def test_each_part_of_the_state_is_needed_for_the_same_bits(left_out: str) -> None:
    """Checks the comparison of the test above: without this part of the state the bits differ."""
    expected = trained_without_a_stop(4)
    first = trainer()
    first.step()
    first.step()
    saved = first.checkpoint()
    fresh = trainer(seed=99)
    fresh.step()  # creates its momentum buffers
    others = fresh.checkpoint()
    mixed = {
        name: (others.tensors[name] if left_out in name else tensor).clone()
        for name, tensor in saved.tensors.items()
    }
    scalars = {
        name: others.scalars[name] if name == left_out else value
        for name, value in saved.scalars.items()
    }
    fresh.resume(Checkpoint(mixed, scalars))
    fresh.step()
    fresh.step()
    with pytest.raises(DifferentBytesError):
        check_same_bits(fresh.checkpoint(), expected)


def test_training_with_other_settings_cannot_resume_from_a_checkpoint() -> None:
    checkpoint = trainer().checkpoint()
    with pytest.raises(DataError, match="batch_size 4, this is 8"):
        trainer(batch_size=8).resume(checkpoint)
    with pytest.raises(DataError, match="images_sha256"):
        Trainer("tiny", generated_images(64, seed=2), batch_size=4, seed=5).resume(checkpoint)


def test_a_checkpoint_before_the_first_step_has_no_momentum_and_can_be_resumed() -> None:
    start = copied(trainer().checkpoint())
    expected = trained_without_a_stop(1)
    other = trainer(seed=99)
    other.resume(start)
    other.step()
    check_same_bits(other.checkpoint(), expected)
