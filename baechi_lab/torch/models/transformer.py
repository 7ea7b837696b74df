"""Transformer encoder and decoder (Vaswani et al. 2017, arXiv:1706.03762), with tied embeddings.

Attention is written with plain functions between layers (`matmul`, `softmax`), so its parts can be placed apart.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Multi-head attention: queries from `x`, keys and values from `memory`."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, memory: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = self._split(self.query(x)), self._split(self.key(memory)), self._split(self.value(memory))
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask, float("-inf"))
        attended = torch.matmul(self.dropout(F.softmax(scores, dim=-1)), v)
        return self.out(attended.transpose(1, 2).reshape(x.shape))

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.size(0), x.size(1), self.heads, -1).transpose(1, 2)


class FeedForward(nn.Sequential):
    """Two linear layers around a ReLU."""

    def __init__(self, width: int, inner: int, dropout: float):
        super().__init__(nn.Linear(width, inner), nn.ReLU(), nn.Dropout(dropout), nn.Linear(inner, width))


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each with a residual and a norm after it."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float):
        super().__init__()
        self.attention, self.feed = Attention(width, heads, dropout), FeedForward(width, inner, dropout)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = self.norm1(x + self.dropout(self.attention(x, x, mask)))
        return self.norm2(x + self.dropout(self.feed(x)))


class DecoderLayer(nn.Module):
    """Masked self-attention, attention over the encoder, feed-forward."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float):
        super().__init__()
        self.own, self.cross = Attention(width, heads, dropout), Attention(width, heads, dropout)
        self.feed = FeedForward(width, inner, dropout)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: torch.Tensor, memory: torch.Tensor, causal: torch.Tensor, padding: torch.Tensor
    ) -> torch.Tensor:
        x = self.norm1(x + self.dropout(self.own(x, x, causal)))
        x = self.norm2(x + self.dropout(self.cross(x, memory, padding)))
        return self.norm3(x + self.dropout(self.feed(x)))


class Transformer(nn.Module):
    """Token ids int64[batch, source] and [batch, target] -> logits [batch, target, vocabulary]; 0 is padding.

    One embedding serves source, target and output (weight sharing).
    """

    def __init__(
        self,
        vocabulary: int = 32000,
        width: int = 512,
        heads: int = 8,
        inner: int = 2048,
        layers: int = 6,
        dropout: float = 0.1,
        length: int = 512,
    ):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        angle = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
        self.register_buffer(
            "positions", torch.stack([angle.sin(), angle.cos()], dim=-1).reshape(length, width), persistent=False
        )
        self.dropout = nn.Dropout(dropout)
        self.encoder = nn.ModuleList(EncoderLayer(width, heads, inner, dropout) for _ in range(layers))
        self.decoder = nn.ModuleList(DecoderLayer(width, heads, inner, dropout) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        padding = (source == 0)[:, None, None, :]
        memory = self._embed(source)
        for layer in self.encoder:
            memory = layer(memory, padding)
        size = target.size(1)
        causal = torch.ones(size, size, dtype=torch.bool, device=target.device).triu(1)
        x = self._embed(target)
        for layer in self.decoder:
            x = layer(x, memory, causal, padding)
        return self.head(x)

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) * math.sqrt(self.embedding.embedding_dim)
        return self.dropout(x + self.positions[: tokens.size(1)])
