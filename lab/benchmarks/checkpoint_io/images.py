"""Images to train on: generated, or CIFAR-10's own files."""

from __future__ import annotations

import hashlib
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.checkpoint_io.models import CLASSES
from pmemlab.workloads.batches import DataError

__all__ = ["Images", "cifar_images", "generated_images"]

_SHAPE: Final = (3, 32, 32)
_PADDING: Final = 4
# Mean and deviation of CIFAR-10's training images, per colour.
_MEAN: Final = (0.4914, 0.4822, 0.4465)
_DEVIATION: Final = (0.2470, 0.2435, 0.2616)


@dataclass(frozen=True)
class Images:
    """Labelled images. pixels: uint8 (n, 3, 32, 32); labels: int64 (n,), 0 to 9. sha256 is over
    both.
    """

    pixels: Tensor
    labels: Tensor
    sha256: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha256(self.pixels.numpy().data)
        digest.update(self.labels.numpy().data)
        object.__setattr__(self, "sha256", digest.hexdigest())

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        """Draw a batch by PyTorch's generator, each image shifted by up to 4 pixels and perhaps
        mirrored.

        Returns float32 (count, 3, 32, 32), normalised, and the labels, int64 (count,).
        """
        chosen = torch.randint(len(self.labels), (count,))
        moves = torch.randint(2 * _PADDING + 1, (count, 2)).tolist()
        mirrored = torch.randint(2, (count,)).bool()
        padded = torch.nn.functional.pad(self.pixels[chosen], (_PADDING,) * 4)
        height, width = _SHAPE[1:]
        images = torch.stack(
            [
                image[:, down : down + height, right : right + width]
                for image, (down, right) in zip(padded, moves, strict=True)
            ]
        )
        images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
        mean, deviation = (torch.tensor(of)[:, None, None] for of in (_MEAN, _DEVIATION))
        return (images / 255.0 - mean) / deviation, self.labels[chosen]


def generated_images(count: int, seed: int) -> Images:
    """Generate images in which each class has its own pattern under noise; a seed gives the same
    images.
    """
    generator = np.random.default_rng(seed)
    patterns = generator.integers(0, 256, (CLASSES, *_SHAPE))
    labels = generator.integers(0, CLASSES, count)
    noise = generator.integers(0, 256, (count, *_SHAPE))
    pixels = ((patterns[labels] + noise) // 2).astype(np.uint8)
    return Images(torch.from_numpy(pixels), torch.from_numpy(labels))


def cifar_images(path: Path) -> Images:
    """Read CIFAR-10's training images from its Python files.

    path: a file such as data_batch_1, or the folder with these files. Raises DataError, which names
    the file.
    """
    files = sorted(path.glob("data_batch_*")) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path}: no data_batch_1 or other files of CIFAR-10's Python version here")
    batches = [_cifar_batch(file) for file in files]
    pixels, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return Images(torch.from_numpy(pixels), torch.from_numpy(labels))


def _cifar_batch(file: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    try:
        with file.open("rb") as opened:
            document = _ArraysOnly(opened, encoding="bytes").load()
    except (OSError, EOFError, pickle.UnpicklingError, ValueError) as error:
        raise DataError(f"{file}: not one of CIFAR-10's Python files: {error}") from error
    try:
        data, labels = document[b"data"], np.asarray(document[b"labels"], np.int64)
        pixels = np.ascontiguousarray(data.reshape(-1, *_SHAPE))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{file}: no images and labels as CIFAR-10 has them: {error!r}") from error
    if pixels.dtype != np.uint8 or labels.shape != pixels.shape[:1]:
        raise DataError(
            f"{file}: {len(pixels)} images of {pixels.dtype} with labels of shape {labels.shape}"
        )
    if not np.isin(labels, range(CLASSES)).all():
        raise DataError(f"{file}: a label isn't between 0 and {CLASSES - 1}")
    return pixels, labels


class _ArraysOnly(pickle.Unpickler):
    """An unpickler for arrays alone: a pickle may call any function, and CIFAR-10's need only these
    three.
    """

    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module.endswith(".multiarray"):
            return _array_by_pickle
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


# The function that numpy's pickled arrays call; its module's name depends on numpy's version.
_array_by_pickle: Final = np.zeros(0).__reduce__()[0]
