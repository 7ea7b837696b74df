"""A BERT-like encoder (Devlin et al. 2019, doi:10.18653/v1/N19-1423) with tied masked-token head and pooler."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Embeddings(nn.Module):
    """Token, position and segment embeddings, added between layers."""

    def __init__(self, vocabulary: int, width: int, length: int, dropout: float):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=0)
        self.places, self.segments = nn.Embedding(length, width), nn.Embedding(2, width)
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(dropout)

    def forward(self, tokens: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.size(1), device=tokens.device)
        return self.dropout(self.norm(self.tokens(tokens) + self.places(places) + self.segments(segments)))


class Layer(nn.Module):
    """Self-attention (`nn.MultiheadAttention`, one operator) and a GELU feed-forward."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, dropout=dropout, batch_first=True)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        attended, _ = self.attention(x, x, x, key_padding_mask=padding, need_weights=False)
        x = self.norm1(x + self.dropout(attended))
        return self.norm2(x + self.dropout(self.down(F.gelu(self.up(x)))))


class BERT(nn.Module):
    """Token ids and segments int64[batch, length] -> (token logits, next-sentence logits [batch, 2]); 0 is padding."""

    def __init__(
        self,
        vocabulary: int = 30522,
        width: int = 768,
        heads: int = 12,
        inner: int = 3072,
        layers: int = 12,
        length: int = 512,
        dropout: float = 0.1,
    ):
        super().__init__()
        self.embeddings = Embeddings(vocabulary, width, length, dropout)
        self.layers = nn.ModuleList(Layer(width, heads, inner, dropout) for _ in range(layers))
        self.pooler, self.next = nn.Linear(width, width), nn.Linear(width, 2)
        self.transform, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, tokens: torch.Tensor, segments: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        padding = tokens == 0
        x = self.embeddings(tokens, segments)
        for layer in self.layers:
            x = layer(x, padding)
        pooled = torch.tanh(self.pooler(x[:, 0]))
        hidden = self.norm(F.gelu(self.transform(x)))
        # the output layer shares the embedding's weights, read by a function rather than a layer
        return F.linear(hidden, self.embeddings.tokens.weight, self.bias), self.next(pooled)
