"""Predicts convolutional networks that NVIDIA and the authors of timm measured on GPUs, with channels first and last.

    python -m studies.kernels.images data/training --store studies/results/kernel_images.json

Residual networks, some with groups of channels or squeeze and excitation, and VGG-16, on images of 224 x 224 or 288 x 288, and
the U-Nets of nnU-Net on images of 192 x 160 and on volumes of 128 x 128 x 128.
A prediction is the sum of all kernels. It lacks reading the data, the update, and nnU-Net's Dice loss. One constant of the
kernel model was fitted to ResNets on RTX 3090 and 4090: `kernel_model.OTHER_FEW_CHANNELS_SHARE`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from baechi_lab.graph.hardware import Hardware
from baechi_lab.profilers.torch.layer_estimate import LayerEstimate, estimate_layers
from studies.csv_records import read_records
from studies.results import store

CLASSES = 1000
SQUEEZE = 16
"""Channels per channel that squeeze and excitation computes with."""
CHANNELS, TISSUES = 4, 4
"""Of a volume of the brain tumour task: its images, and what they are divided into."""
LEVELS, NARROWEST, WIDEST = 6, 32, {2: 512, 3: 320}
"""Of a U-Net, with the filters of the first level, and the most by dimensions."""


class ImageRun(NamedTuple):
    """A measured run on a device: samples in a step, images or volumes per second, pixels of an image's side (0: nnU-Net's)."""

    source: str
    device: str
    model: str
    phase: str
    precision: str
    channels_last: int
    batch: int
    per_second: float
    image: int


class Bottleneck(nn.Module):
    """Three convolutions with a shortcut around them."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int, groups: int, squeezes: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, width, 3, stride, 1, groups=groups, bias=False), nn.BatchNorm2d(width)),
            *(nn.ReLU(inplace=True), nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)),
        )
        squeezed = outputs // SQUEEZE
        gates = (
            *(nn.AdaptiveAvgPool2d(1), nn.Conv2d(outputs, squeezed, 1), nn.ReLU(inplace=True)),
            *(nn.Conv2d(squeezed, outputs, 1), nn.Sigmoid()),
        )
        self.gates = nn.Sequential(*gates) if squeezes else None
        self.shortcut = nn.Sequential()
        if inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.output = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        if self.gates is not None:
            y = y * self.gates(y)
        summed: torch.Tensor = self.output(y + self.shortcut(x))
        return summed


def residual_network(
    depths: Sequence[int], groups: int = 1, group_width: int = 64, squeezes: bool = False
) -> nn.Module:
    """Returns a ResNet or ResNeXt of four stages, whose groups have `group_width` channels in the first."""
    blocks, inputs = [], 64
    for stage, depth in enumerate(depths):
        width, outputs = groups * group_width * 2**stage, 256 * 2**stage
        for k in range(depth):
            stride = 2 if stage and not k else 1
            blocks.append(Bottleneck(inputs, width, outputs, stride, groups, squeezes))
            inputs = outputs
    stem = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))


class UNet(nn.Module):
    """The U-Net of nnU-Net: two convolutions with instance norms per level, down and up again."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        convolution, transposed = (nn.Conv2d, nn.ConvTranspose2d) if dims == 2 else (nn.Conv3d, nn.ConvTranspose3d)
        norm = nn.InstanceNorm2d if dims == 2 else nn.InstanceNorm3d
        widths = [min(NARROWEST * 2**level, WIDEST[dims]) for level in range(LEVELS)]

        def block(inputs: int, outputs: int, stride: int = 1) -> nn.Module:
            first, second = (
                (convolution(i, outputs, 3, s, 1, bias=False), norm(outputs, affine=True), nn.LeakyReLU(0.01))
                for i, s in ((inputs, stride), (outputs, 1))
            )
            return nn.Sequential(*first, *second)

        pairs = list(pairwise(widths))
        self.first = block(CHANNELS, widths[0])
        self.down = nn.ModuleList(block(wide, narrow, 2) for wide, narrow in pairs)
        self.up = nn.ModuleList(transposed(narrow, wide, 2, 2) for wide, narrow in reversed(pairs))
        self.join = nn.ModuleList(block(2 * wide, wide) for wide, _ in reversed(pairs))
        self.head = convolution(widths[0], TISSUES, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels = [self.first(x)]
        for block in self.down:
            levels.append(block(levels[-1]))
        x = levels.pop()
        for upsample, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([upsample(x), levels.pop()], 1))
        scores: torch.Tensor = self.head(x)
        return scores


class WithLoss(nn.Module):
    """A model and the cross entropy of its outputs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.model(x), labels)


def vgg_network() -> nn.Module:
    """Returns VGG-16."""
    layers: list[nn.Module] = []
    channels = 3
    for depth, filters in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(depth):
            layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.ReLU(inplace=True)]
            channels = filters
        layers.append(nn.MaxPool2d(2))
    hidden = 4096
    head = (
        nn.Linear(channels * 7 * 7, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, CLASSES),
    )
    return nn.Sequential(*layers, nn.Flatten(), *head)


def model_and_input(name: str, batch: int, image: int) -> tuple[nn.Module, torch.Tensor]:
    """Returns a model without weights, and a batch of its input."""
    sizes = {
        "resnet-50": ((3, 4, 6, 3),),
        "resnet-101": ((3, 4, 23, 3),),
        "wide-resnet-50": ((3, 4, 6, 3), 1, 128),
        "resnext-50-32x4d": ((3, 4, 6, 3), 32, 4),
        "resnext-101-32x4d": ((3, 4, 23, 3), 32, 4),
        "resnext-101-32x8d": ((3, 4, 23, 3), 32, 8),
        "se-resnext-101-32x4d": ((3, 4, 23, 3), 32, 4, True),
    }
    with torch.device("meta"):
        if name == "nnunet-2d":
            return UNet(2), torch.empty(batch, CHANNELS, 192, 160)
        if name == "nnunet-3d":
            return UNet(3), torch.empty(batch, CHANNELS, 128, 128, 128)
        model = vgg_network() if name == "vgg-16" else residual_network(*sizes[name])  # type: ignore[arg-type]
        return model, torch.empty(batch, 3, image, image)


@cache
def estimate_of(
    name: str, phase: str, precision: str, channels_last: int, batch: int, image: int = 224
) -> LayerEstimate:
    """Returns the work of a run, whatever its device."""
    model, x = model_and_input(name, batch, image)
    if channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if phase == "inference":
        return estimate_layers(model, x, mode=phase, precision=precision)
    shape = (batch, *x.shape[2:]) if name.startswith("nnunet") else (batch,)
    labels = torch.empty(shape, dtype=torch.long, device="meta")
    return estimate_layers(WithLoss(model), (x, labels), mode=phase, precision=precision)


def main(arguments: Sequence[str] | None = None) -> None:
    """Predicts, prints and stores every row."""
    parser = argparse.ArgumentParser(prog="python -m studies.kernels.images", description=__doc__)
    parser.add_argument("data", type=Path, help="folder of the measurements")
    parser.add_argument("--store", type=Path, required=True, help="the file to write")
    options = parser.parse_args(arguments)
    rows = []
    for run in read_records(options.data / "images.csv", ImageRun):
        estimate = estimate_of(run.model, run.phase, run.precision, run.channels_last, run.batch, run.image)
        us = sum(float(kernel_us.sum()) for kernel_us in estimate.microseconds(Hardware.named(run.device)))
        rows.append({**run._asdict(), "error": round(us * run.per_second / (1e6 * run.batch) - 1, 4)})
        print(*rows[-1].values(), flush=True)
    errors = [row["error"] for row in rows]
    mean_error, worst_error = sum(map(abs, errors)) / len(errors), max(errors, key=abs)
    print(f"mean {mean_error:.1%}, worst {worst_error:+.0%}")
    store(
        options.store,
        "python -m studies.kernels.images data/training --store FILE",
        mean_error=round(mean_error, 4),
        worst_error=worst_error,
        rows=rows,
    )


if __name__ == "__main__":
    main()
