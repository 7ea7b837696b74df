"""A small GPT in PyTorch: causal attention and two dense layers, normalized before each. Needs torch."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.nn import functional as F

from baechi_lab.torch_steps.step import TorchStep


class Block(nn.Module):
    """One layer; the attention's products are ops of their own."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, words, width = x.shape
        projections = self.qkv(self.norm1(x)).view(batch, words, 3, self.heads, width // self.heads)
        query, key, value = projections.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, words, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Words int64[batch, words] -> logits[batch, words, vocabulary]."""

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int, words: int):
        super().__init__()
        self.table, self.places = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(words, width))
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def next_word(logits: torch.Tensor, next_tokens: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy."""
    return F.cross_entropy(logits.flatten(0, 1), next_tokens.flatten())


def gpt_step(
    *,
    batch_size: int,
    layers: int = 4,
    width: int = 128,
    heads: int = 4,
    words: int = 64,
    vocabulary: int = 1000,
    seed: int = 0,
) -> TorchStep:
    """The training step: mean cross entropy of the next word, SGD."""
    text = torch.randint(0, vocabulary, (batch_size, words + 1), generator=torch.Generator().manual_seed(seed + 1))
    build = functools.partial(GPT, vocabulary, width, heads, layers, words)
    sgd = functools.partial(torch.optim.SGD, lr=0.01)
    return TorchStep("gpt", build, (text[:, :-1].clone(),), next_word, (text[:, 1:].clone(),), sgd, seed=seed)
