"""A GNMT-like translation model (Wu et al. 2016, arXiv:1609.08144): stacked LSTMs, attention, residuals."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Encoder(nn.Module):
    """A bidirectional LSTM below unidirectional ones, with residuals from the third layer on."""

    def __init__(self, width: int, layers: int, dropout: float):
        super().__init__()
        self.first = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        sizes = [2 * width] + [width] * (layers - 2)
        self.rest = nn.ModuleList(nn.LSTM(size, width, batch_first=True) for size in sizes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, _ = self.first(self.dropout(x))
        for k, lstm in enumerate(self.rest):
            y, _ = lstm(self.dropout(x))
            x = y if k == 0 else y + x
        return x


class BahdanauAttention(nn.Module):
    """Additive attention, for all target positions at once."""

    def __init__(self, width: int):
        super().__init__()
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, queries: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        mixed = torch.tanh(self.query(queries).unsqueeze(2) + self.key(memory).unsqueeze(1))
        weights = F.softmax(self.score(mixed).squeeze(-1), dim=-1)
        return torch.bmm(weights, memory)


class Decoder(nn.Module):
    """The first LSTM asks the attention; its answer goes to every further layer."""

    def __init__(self, width: int, layers: int, dropout: float):
        super().__init__()
        self.first = nn.LSTM(width, width, batch_first=True)
        self.attention = BahdanauAttention(width)
        self.rest = nn.ModuleList(nn.LSTM(2 * width, width, batch_first=True) for _ in range(layers - 1))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        x, _ = self.first(self.dropout(x))
        context = self.attention(x, memory)
        for k, lstm in enumerate(self.rest):
            y, _ = lstm(torch.cat([self.dropout(x), context], dim=-1))
            x = y if k == 0 else y + x
        return x


class GNMT(nn.Module):
    """Token ids int64[batch, source] and [batch, target] -> logits [batch, target, vocabulary]."""

    def __init__(self, vocabulary: int = 32000, width: int = 1024, layers: int = 4, dropout: float = 0.2):
        super().__init__()
        self.source, self.target = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        self.encoder, self.decoder = Encoder(width, layers, dropout), Decoder(width, layers, dropout)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.head(self.decoder(self.target(target), self.encoder(self.source(source))))
