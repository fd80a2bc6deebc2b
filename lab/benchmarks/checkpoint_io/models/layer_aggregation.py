"""Deep layer aggregation (Yu and others, arXiv:1707.06484), in the simplified form for CIFAR-10:
trees of two, whose root sees the two subtrees and nothing from further up."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["SimpleDLA"]


def _convolution(channels: int, width: int, size: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, width, size, stride=stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(width),
    )


class ResidualBlock(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = _convolution(channels, width, 3, stride)
        self.second = _convolution(width, width, 3)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = _convolution(channels, width, 1, stride)

    def forward(self, features: Tensor) -> Tensor:
        inner = self.second(self.first(features).relu())
        total: Tensor = inner + self.shortcut(features)
        return total.relu()


class Tree(nn.Module):
    """Two subtrees, one after the other, and a root that joins their outputs."""

    def __init__(self, channels: int, width: int, level: int, stride: int) -> None:
        super().__init__()
        self.left: nn.Module
        self.right: nn.Module
        if level == 1:
            self.left = ResidualBlock(channels, width, stride)
            self.right = ResidualBlock(width, width, 1)
        else:
            self.left = Tree(channels, width, level - 1, stride)
            self.right = Tree(width, width, level - 1, 1)
        self.root = _convolution(2 * width, width, 1)

    def forward(self, features: Tensor) -> Tensor:
        left = self.left(features)
        joined: Tensor = self.root(torch.cat([left, self.right(left)], dim=1))
        return joined.relu()


class SimpleDLA(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels, width in ((3, 16), (16, 16), (16, 32)):
            layers += [_convolution(channels, width, 3), nn.ReLU(inplace=True)]
        layers += [
            Tree(32, 64, level=1, stride=1),
            Tree(64, 128, level=2, stride=2),
            Tree(128, 256, level=2, stride=2),
            Tree(256, 512, level=1, stride=2),
        ]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(512, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images).mean(dim=(2, 3)))
        return logits
