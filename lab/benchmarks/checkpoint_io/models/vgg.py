"""VGG (Simonyan and Zisserman, arXiv:1409.1556) with batch normalisation, for 32 pixels."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

__all__ = ["VGG", "vgg16", "vgg19"]

_STAGE_WIDTHS = (64, 128, 256, 512, 512)


class VGG(nn.Module):
    """Five stages of 3x3 convolutions, each halving the image, and one linear layer.

    stage_depths: convolutions of each stage.
    """

    def __init__(self, stage_depths: Sequence[int], classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for depth, width in zip(stage_depths, _STAGE_WIDTHS, strict=True):
            for _ in range(depth):
                layers += [
                    nn.Conv2d(channels, width, kernel_size=3, padding=1),
                    nn.BatchNorm2d(width),
                    nn.ReLU(inplace=True),
                ]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images).flatten(1))
        return logits


def vgg16(classes: int) -> VGG:
    return VGG((2, 2, 3, 3, 3), classes)


def vgg19(classes: int) -> VGG:
    return VGG((2, 2, 4, 4, 4), classes)
