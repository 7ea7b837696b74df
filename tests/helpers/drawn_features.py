"""Models that exported scripts build again; the file imports torch alone, as it must."""

import torch
from torch import nn


class DrawnFeatures(nn.Module):
    """Draws more than its weights: a buffer that is not stored, and the order of its features."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("frequencies", torch.randn(8, 8), persistent=False)
        self.features = torch.randperm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x) @ self.frequencies)[:, self.features])


class Normalized(nn.Module):
    """Normalizes by the statistics of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.norm(self.first(x))))
