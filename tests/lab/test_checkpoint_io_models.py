"""The models whose checkpoints the benchmark saves, and the images that they are trained on."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from benchmarks.checkpoint_io.images import cifar_images, generated_images
from benchmarks.checkpoint_io.models import MODELS, make_model
from pmemlab.workloads.batches import DataError

PARAMETERS = {  # as in pytorch-cifar and in lab/docs/benchmarks.md
    "vgg16": 14_728_266,
    "vgg19": 20_040_522,
    "dpn92": 34_236_634,
    "simpledla": 15_142_970,
    "tiny": 20_722,
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_its_published_number_of_parameters(name: str) -> None:
    with torch.device("meta"):  # shapes without memory or time
        model = make_model(name)
        assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_generated_images_depend_on_the_seed_alone() -> None:
    first = generated_images(20, seed=1)
    assert first.pixels.shape == (20, 3, 32, 32)
    assert first.sha256 == generated_images(20, seed=1).sha256
    assert first.sha256 != generated_images(20, seed=2).sha256


def test_batches_depend_on_the_random_generator() -> None:
    images = generated_images(20, seed=1)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    pixels, labels = images.draw(6)
    after = images.draw(6)[0]
    torch.set_rng_state(state)
    assert torch.equal(images.draw(6)[0], pixels)
    assert not torch.equal(after, pixels)
    assert pixels.shape == (6, 3, 32, 32)
    assert labels.shape == (6,)


def cifar_file(path: Path, first_label: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    pixels = np.random.default_rng(first_label).integers(0, 256, (4, 3072), np.uint8)
    labels = [(first_label + n) % 10 for n in range(4)]
    with path.open("wb") as file:
        PickledByPython2(file, protocol=2).dump({"data": pixels, "labels": labels})
    return pixels


class PickledByPython2(pickle._Pickler):
    """Pickles str and bytes as Python 2's one string type, as in CIFAR-10's files."""

    def save_string(self, value: str | bytes) -> None:
        raw = value.encode() if isinstance(value, str) else value
        self.write(pickle.BINSTRING + struct.pack("<i", len(raw)) + raw)  # type: ignore[attr-defined]

    dispatch: ClassVar[dict[type, Any]] = {
        **pickle._Pickler.dispatch,
        str: save_string,
        bytes: save_string,
    }


def test_cifar_is_read_from_its_folder_or_one_of_its_files(tmp_path: Path) -> None:
    first = cifar_file(tmp_path / "data_batch_1", 0)
    second = cifar_file(tmp_path / "data_batch_2", 5)
    (tmp_path / "test_batch").write_bytes(b"not for training")
    both = cifar_images(tmp_path)
    assert both.labels.tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
    assert torch.equal(
        both.pixels.reshape(8, -1), torch.from_numpy(np.concatenate([first, second]))
    )
    assert cifar_images(tmp_path / "data_batch_2").labels.tolist() == [5, 6, 7, 8]


class Malicious:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("called",)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not one of CIFAR-10's"),
        (pickle.dumps({b"data": Malicious(), b"labels": []}), "it asks for builtins.print"),
        (pickle.dumps({b"labels": [1]}, protocol=3), "no images and labels"),
        (
            pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}, protocol=3),
            "labels of shape",
        ),
        (
            pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [10]}, protocol=3),
            "between 0 and 9",
        ),
    ],
)
def test_a_file_that_is_not_cifar_s_is_an_error_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, complaint: str
) -> None:
    file = tmp_path / "data_batch_1"
    file.write_bytes(content)
    with pytest.raises(DataError, match=complaint) as caught:
        cifar_images(tmp_path)
    assert str(file) in str(caught.value)
    assert capsys.readouterr().out == ""


def test_a_folder_without_cifars_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no data_batch_1"):
        cifar_images(tmp_path)
