"""Inception-V3 (Szegedy et al. 2016, doi:10.1109/CVPR.2016.308), with the auxiliary head in training."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

Counts = Callable[[int], int]


class ConvBNReLU(nn.Module):
    """Convolution, batch norm, ReLU: the module that Shetty 2022 keeps whole (`atomic=("ConvBNReLU",)`)."""

    def __init__(
        self,
        channels: int,
        out: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
    ):
        super().__init__()
        self.conv = nn.Conv2d(channels, out, kernel, stride=stride, padding=padding, bias=False)
        self.bn = nn.BatchNorm2d(out, eps=1e-3)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.bn(self.conv(x)))


class Branches(nn.Module):
    """Branches on one input, joined by a plain `torch.cat` along channels."""

    def __init__(self, *branches: nn.Module):
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class InceptionV3(nn.Module):
    """Images float32[batch, 3, size, size] (size >= 75) -> logits, and in training (logits, auxiliary logits).

    `scale` multiplies every channel count (1.0: the published model), `dropout` is the rate before the last layer.
    """

    def __init__(self, classes: int = 1000, scale: float = 1.0, dropout: float = 0.5, auxiliary: bool = True):
        super().__init__()
        c = lambda n: max(1, round(n * scale))  # noqa: E731 - the published channel counts read best inline
        conv = ConvBNReLU
        self.stem = nn.Sequential(
            conv(3, c(32), 3, 2),
            conv(c(32), c(32), 3),
            conv(c(32), c(64), 3, padding=1),
            nn.MaxPool2d(3, 2),
            conv(c(64), c(80), 1),
            conv(c(80), c(192), 3),
            nn.MaxPool2d(3, 2),
        )
        a = 2 * c(64) + c(96) + c(64)
        self.mixed5 = nn.Sequential(_a(c, c(192), c(32)), _a(c, c(64) * 2 + c(96) + c(32), c(64)), _a(c, a, c(64)))
        self.reduce6 = _b(c, a)
        b = c(384) + c(96) + a
        self.mixed6 = nn.Sequential(_c(c, b, c(128)), *(_c(c, 4 * c(192), c(n)) for n in (160, 160, 192)))
        self.aux = Auxiliary(4 * c(192), c(128), c(768), classes) if auxiliary else None
        self.reduce7 = _d(c, 4 * c(192))
        d = c(320) + c(192) + 4 * c(192)
        e = c(320) + 4 * c(384) + c(192)
        self.mixed7 = nn.Sequential(_e(c, d), _e(c, e))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(e, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        middle = self.mixed6(self.reduce6(self.mixed5(self.stem(images))))
        aux = self.aux(middle) if self.aux is not None and self.training else None
        top = self.mixed7(self.reduce7(middle))
        logits = self.head(self.dropout(F.adaptive_avg_pool2d(top, 1).flatten(1)))
        return logits if aux is None else (logits, aux)


class Auxiliary(nn.Module):
    """The side classifier on the 17x17 grid."""

    def __init__(self, channels: int, width: int, wide: int, classes: int):
        super().__init__()
        self.conv0 = ConvBNReLU(channels, width, 1)
        self.conv1 = ConvBNReLU(width, wide, 5)
        self.head = nn.Linear(wide, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv1(self.conv0(F.adaptive_avg_pool2d(x, 5)))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class _Pool(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(x, 3, stride=1, padding=1)


def _a(c: Counts, channels: int, pool: int) -> Branches:
    conv = ConvBNReLU
    return Branches(
        conv(channels, c(64), 1),
        nn.Sequential(conv(channels, c(48), 1), conv(c(48), c(64), 5, padding=2)),
        nn.Sequential(conv(channels, c(64), 1), conv(c(64), c(96), 3, padding=1), conv(c(96), c(96), 3, padding=1)),
        nn.Sequential(_Pool(), conv(channels, pool, 1)),
    )


def _b(c: Counts, channels: int) -> Branches:
    conv = ConvBNReLU
    return Branches(
        conv(channels, c(384), 3, 2),
        nn.Sequential(conv(channels, c(64), 1), conv(c(64), c(96), 3, padding=1), conv(c(96), c(96), 3, 2)),
        nn.MaxPool2d(3, 2),
    )


def _c(c: Counts, channels: int, n: int) -> Branches:
    conv = ConvBNReLU
    row, column = ((1, 7), 1, (0, 3)), ((7, 1), 1, (3, 0))  # kernel, stride, padding
    return Branches(
        conv(channels, c(192), 1),
        nn.Sequential(conv(channels, n, 1), conv(n, n, *row), conv(n, c(192), *column)),
        nn.Sequential(
            conv(channels, n, 1), conv(n, n, *column), conv(n, n, *row), conv(n, n, *column), conv(n, c(192), *row)
        ),
        nn.Sequential(_Pool(), conv(channels, c(192), 1)),
    )


def _d(c: Counts, channels: int) -> Branches:
    conv = ConvBNReLU
    w = c(192)
    return Branches(
        nn.Sequential(conv(channels, w, 1), conv(w, c(320), 3, 2)),
        nn.Sequential(
            conv(channels, w, 1),
            conv(w, w, (1, 7), padding=(0, 3)),
            conv(w, w, (7, 1), padding=(3, 0)),
            conv(w, w, 3, 2),
        ),
        nn.MaxPool2d(3, 2),
    )


def _e(c: Counts, channels: int) -> Branches:
    conv = ConvBNReLU
    w = c(384)
    split = lambda: Branches(conv(w, w, (1, 3), padding=(0, 1)), conv(w, w, (3, 1), padding=(1, 0)))  # noqa: E731
    return Branches(
        conv(channels, c(320), 1),
        nn.Sequential(conv(channels, w, 1), split()),
        nn.Sequential(conv(channels, c(448), 1), conv(c(448), w, 3, padding=1), split()),
        nn.Sequential(_Pool(), conv(channels, c(192), 1)),
    )
