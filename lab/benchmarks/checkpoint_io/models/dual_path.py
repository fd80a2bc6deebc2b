"""Dual path networks (Chen and others, arXiv:1707.01629), for images of 32 pixels.

The first channels are a residual path, to which each block adds; the rest are a dense path, to
which each block appends channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["DualPathNetwork", "dpn92"]

_GROUPS = 32
_STEM_CHANNELS = 64


@dataclass(frozen=True)
class Stage:
    """A stage of blocks of one shape. inner: channels of the grouped convolution; residual: of the
    residual path; growth: channels that a block appends to the dense path.
    """

    blocks: int
    inner: int
    residual: int
    growth: int
    stride: int


class DualPathBlock(nn.Module):
    def __init__(self, channels: int, stage: Stage, first: bool) -> None:
        super().__init__()
        out = stage.residual + stage.growth
        stride = stage.stride if first else 1
        self.residual = stage.residual
        self.body = nn.Sequential(
            nn.Conv2d(channels, stage.inner, kernel_size=1, bias=False),
            nn.BatchNorm2d(stage.inner),
            nn.ReLU(inplace=True),
            nn.Conv2d(
                stage.inner,
                stage.inner,
                kernel_size=3,
                stride=stride,
                padding=1,
                groups=_GROUPS,
                bias=False,
            ),
            nn.BatchNorm2d(stage.inner),
            nn.ReLU(inplace=True),
            nn.Conv2d(stage.inner, out, kernel_size=1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if first:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(out),
            )

    def forward(self, features: Tensor) -> Tensor:
        old, new = self.shortcut(features), self.body(features)
        at = self.residual
        summed = old[:, :at] + new[:, :at]
        return torch.cat([summed, old[:, at:], new[:, at:]], dim=1).relu()


class DualPathNetwork(nn.Module):
    def __init__(self, stages: tuple[Stage, ...], classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, _STEM_CHANNELS, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(_STEM_CHANNELS),
            nn.ReLU(inplace=True),
        ]
        channels = _STEM_CHANNELS
        for stage in stages:
            for number in range(stage.blocks):
                layers.append(DualPathBlock(channels, stage, first=number == 0))
                # A stage's first block starts its dense path with two growths.
                channels = stage.residual + (number + 2) * stage.growth
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images).mean(dim=(2, 3)))
        return logits


def dpn92(classes: int) -> DualPathNetwork:
    stages = (
        Stage(blocks=3, inner=96, residual=256, growth=16, stride=1),
        Stage(blocks=4, inner=192, residual=512, growth=32, stride=2),
        Stage(blocks=20, inner=384, residual=1024, growth=24, stride=2),
        Stage(blocks=3, inner=768, residual=2048, growth=128, stride=2),
    )
    return DualPathNetwork(stages, classes)
