"""Models for CIFAR-10's images: float32 (n, 3, 32, 32) in, logits of 10 classes (n, 10) out.

The models are reimplementations of pytorch-cifar's. Model libraries have models of the same names
for ImageNet only: their first layers shrink an image of 32 pixels to nothing, and their VGG has ten
times the parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from torch import Tensor, nn

from benchmarks.checkpoint_io.models.dual_path import dpn92
from benchmarks.checkpoint_io.models.layer_aggregation import SimpleDLA
from benchmarks.checkpoint_io.models.vgg import vgg16, vgg19

__all__ = ["CLASSES", "MODELS", "Tiny", "make_model"]

CLASSES: Final = 10


class Tiny(nn.Module):
    """A convolution and a linear layer: every kind of state that the large models have."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, kernel_size=3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.classifier = nn.Linear(8 * 16 * 16, classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.norm(self.convolution(images)).relu()
        logits: Tensor = self.classifier(features.flatten(1))
        return logits


MODELS: Final[dict[str, Callable[[int], nn.Module]]] = {
    "vgg16": vgg16,
    "vgg19": vgg19,
    "dpn92": dpn92,
    "simpledla": SimpleDLA,
    "tiny": Tiny,
}


def make_model(name: str) -> nn.Module:
    """Return the model with fresh weights from PyTorch's generator. Raises KeyError."""
    return MODELS[name](CLASSES)
