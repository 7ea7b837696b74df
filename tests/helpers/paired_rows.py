"""A model whose only argument is a named tuple, in a file that an export can copy."""

from typing import NamedTuple

import torch
from torch import nn


class Pair(NamedTuple):
    """Two batches of rows."""

    left: torch.Tensor
    right: torch.Tensor


class PairOfRows(nn.Module):
    """The sum of two rows of 8 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, pair: Pair) -> torch.Tensor:
        return torch.addcmul(pair.left, pair.right, self.weight)
