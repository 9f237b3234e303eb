"""The demo's networks: plain PyTorch, nothing of vlug, nothing beside torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["ResNet50", "SmallResNet"]


class Block(nn.Module):  # type: ignore[misc]
    """Two 3×3 convolutions and a shortcut."""

    def __init__(self, c: int, k: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(c, k, 3, stride, 1, bias=False), nn.BatchNorm2d(k), nn.ReLU(inplace=True),
            nn.Conv2d(k, k, 3, 1, 1, bias=False), nn.BatchNorm2d(k),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or c != k:
            self.shortcut = nn.Sequential(nn.Conv2d(c, k, 1, stride, bias=False), nn.BatchNorm2d(k))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class SmallResNet(nn.Module):  # type: ignore[misc]
    """A residual network for 32×32 grey images and 10 classes."""

    def __init__(self, widths: Sequence[int] = (32, 64, 128)) -> None:
        super().__init__()
        a, b, c = widths
        self.stem = nn.Sequential(
            nn.Conv2d(1, a, 3, 1, 1, bias=False), nn.BatchNorm2d(a), nn.ReLU(inplace=True)
        )
        self.blocks = nn.Sequential(Block(a, a), Block(a, b, 2), Block(b, c, 2))
        self.head = nn.Linear(c, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Bottleneck(nn.Module):  # type: ignore[misc]
    """1×1, 3×3 (strided), 1×1 and a shortcut."""

    def __init__(self, c: int, k: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(c, k, 1, bias=False), nn.BatchNorm2d(k), nn.ReLU(inplace=True),
            nn.Conv2d(k, k, 3, stride, 1, bias=False), nn.BatchNorm2d(k), nn.ReLU(inplace=True),
            nn.Conv2d(k, 4 * k, 1, bias=False), nn.BatchNorm2d(4 * k),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or c != 4 * k:
            self.shortcut = nn.Sequential(nn.Conv2d(c, 4 * k, 1, stride, bias=False), nn.BatchNorm2d(4 * k))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.body(x) + self.shortcut(x))


class ResNet50(nn.Module):  # type: ignore[misc]
    """ResNet-50 (He et al. 2015, arXiv:1512.03385), the stride in the 3×3 convolution as commonly trained."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        blocks, c = [], 64
        for k, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for i in range(count):
                blocks.append(Bottleneck(c, k, stride if i == 0 else 1))
                c = 4 * k
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(c, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.blocks(self.stem(x))).flatten(1))
