"""`Transformer`: the sizes of a transformer, and the numbers of parameters that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

from ..checks import check_whole
from ..errors import InvalidInput
from ..params import Params

MOST_LAYERS = 10_000
"""Most layers of a model."""

MOST_PARAMETERS = 10**15
"""Most parameters of a model; no model has a hundredth of them, and their bytes are exact numbers in 64 bits."""

VOCABULARY_MULTIPLE = 128
"""Each device's share of a divided vocabulary is padded to a multiple of this number."""

REQUIRED_SIZES = ("hidden", "layers", "heads", "vocabulary")
"""Sizes without which a transformer is not described."""

SIZES = (
    *REQUIRED_SIZES,
    *str.split(
        "kv_heads head_size feed_forward embedding_size positions experts experts_per_token expert_feed_forward"
    ),
    *str.split("shared_feed_forward dense_layers query_rank key_rank rope_size value_size window windowed_layers"),
)
"""Fields of a `Transformer` that are whole numbers."""


@dataclass(frozen=True)
class Transformer(Params):
    """The sizes of a transformer.

    Args:
        hidden, layers, heads, vocabulary: width of the model, and numbers of layers, attention heads and tokens.
        kv_heads: heads of keys and values (default: `heads`).
        head_size: size of a query and of a key (default: `hidden / heads`).
        feed_forward: inner width of the feed-forward part (default: `4 * hidden`).
        gated: whether the feed-forward part multiplies two projections of that width (SwiGLU).
        bias: whether linear layers add a bias.
        tied: whether the output layer uses the table of the embedding.
        causal: whether tokens see only previous tokens.
        embedding_size: width of the tables of tokens, which a projection makes as wide as the model (default: `hidden`).
        positions: rows of a table of positions, 0 without one.
        dropout: whether activations are dropped after attention and feed-forward part, so that masks are kept.
        experts, experts_per_token, expert_feed_forward, shared_feed_forward: sizes of a mixture of experts; 0 without experts.
        dense_layers: number of first layers without experts.
        query_rank, key_rank, rope_size, value_size: sizes of latent attention (DeepSeek): ranks of the compressed queries and
            of keys and values, rotary part of a head, size of a value; 0 without it.
        window, windowed_layers: tokens that attention looks back, and number of layers where it does; 0 without a window.
        name: the name in titles.

    >>> Transformer(hidden=768, layers=12, heads=12, vocabulary=50257, positions=1024).parameters
    124439808
    """

    hidden: int = 0
    layers: int = 0
    heads: int = 0
    vocabulary: int = 0
    kv_heads: int = 0
    head_size: int = 0
    feed_forward: int = 0
    gated: bool = False
    bias: bool = True
    tied: bool = True
    causal: bool = True
    embedding_size: int = 0
    positions: int = 0
    dropout: bool = False
    experts: int = 0
    experts_per_token: int = 0
    expert_feed_forward: int = 0
    shared_feed_forward: int = 0
    dense_layers: int = 0
    query_rank: int = 0
    key_rank: int = 0
    rope_size: int = 0
    value_size: int = 0
    window: int = 0
    windowed_layers: int = 0
    name: str = "transformer"

    def __post_init__(self) -> None:
        for field in SIZES:  # numbers of NumPy overflow where they are multiplied
            low = 1 if field in REQUIRED_SIZES else 0
            object.__setattr__(self, field, check_whole(field, getattr(self, field), low))
        defaults = {
            "kv_heads": self.heads,
            "head_size": self.hidden // self.heads,
            "feed_forward": 4 * self.hidden,
            "value_size": self.head_size or self.hidden // self.heads,
            "embedding_size": self.hidden,
            "expert_feed_forward": (self.feed_forward or 4 * self.hidden) if self.experts else 0,
            "experts_per_token": 2 if self.experts else 0,
        }
        for field, value in defaults.items():
            if not getattr(self, field):
                object.__setattr__(self, field, value)
        self.check()

    def validate(self) -> None:
        for field in ("kv_heads", "head_size", "feed_forward", "value_size", "embedding_size"):
            check_whole(field, getattr(self, field))
        if self.heads % self.kv_heads:
            raise InvalidInput(f"kv_heads is {self.kv_heads}; it must divide heads, which is {self.heads}")
        if self.experts and self.experts_per_token > self.experts:
            raise InvalidInput(f"experts_per_token is {self.experts_per_token}; there are {self.experts} experts")
        if self.layers > MOST_LAYERS:
            raise InvalidInput(f"layers is {self.layers}; at most {MOST_LAYERS} are allowed")
        if self.parameters > MOST_PARAMETERS:
            raise InvalidInput(
                f"the model has {float(self.parameters):.3g} parameters; at most {MOST_PARAMETERS:.0e} are allowed"
            )

    def vocabulary_share(self, tp: int) -> int:
        """Returns the number of tokens whose rows one of `tp` devices holds; a divided vocabulary is padded as in Megatron-LM.

        >>> gpt = Transformer(hidden=768, layers=12, heads=12, vocabulary=50257)
        >>> gpt.vocabulary_share(1), gpt.vocabulary_share(2)
        (50257, 25216)
        """
        return self.vocabulary if tp == 1 else -(-self.vocabulary // (VOCABULARY_MULTIPLE * tp)) * VOCABULARY_MULTIPLE

    # -- numbers of parameters, all of which a layout divides ----------------------------------------------------------

    @property
    def attention_parameters(self) -> int:
        """Attention's parameters of one layer, with its normalisation."""
        bias = self.bias
        if self.key_rank:
            width = self.heads * (self.head_size + self.rope_size)
            query = self.hidden * self.query_rank + self.query_rank * width if self.query_rank else self.hidden * width
            keys = self.hidden * (self.key_rank + self.rope_size)
            keys += self.key_rank * self.heads * (self.head_size + self.value_size)
            norms = self.query_rank + self.key_rank
            return query + keys + norms + self.heads * self.value_size * self.hidden + self.hidden
        width = (self.heads + 2 * self.kv_heads) * self.head_size
        out = self.heads * self.head_size
        return self.hidden * width + out * self.hidden + bias * (width + self.hidden) + self.hidden * (1 + bias)

    def feed_forward_parameters(self, width: int) -> int:
        """Returns the parameters of a feed-forward part of inner width `width`, without normalisation."""
        up = 2 if self.gated else 1
        return (up + 1) * self.hidden * width + self.bias * (up * width + self.hidden)

    @property
    def dense_layer_parameters(self) -> int:
        """Parameters of a layer without experts."""
        return (
            self.attention_parameters + self.feed_forward_parameters(self.feed_forward) + self.hidden * (1 + self.bias)
        )

    @property
    def expert_layer_parameters(self) -> int:
        """Parameters of a layer with experts."""
        experts = self.experts * self.feed_forward_parameters(self.expert_feed_forward) + self.experts * self.hidden
        shared_parameters = self.feed_forward_parameters(self.shared_feed_forward) if self.shared_feed_forward else 0
        return self.attention_parameters + experts + shared_parameters + self.hidden * (1 + self.bias)

    def has_experts(self, layer: int) -> bool:
        """Whether the feed-forward part of that layer is a mixture of experts."""
        return bool(self.experts) and layer >= self.dense_layers

    def attended_share(self, length: int) -> float:
        """Returns the mean share of `length` keys that a query attends to, in the mean of all layers.

        >>> gemma = Transformer(hidden=64, layers=6, heads=4, vocabulary=100, window=1024, windowed_layers=5)
        >>> gemma.attended_share(1024), gemma.attended_share(4096)    # 5 layers with 0.25 * (1 - 0.25 / 2), one with 0.5
        (0.5, 0.265625)
        """
        if not self.causal:
            return 1.0
        looked_back = min(self.window / length, 1.0) if self.windowed_layers else 1.0
        windowed_share = self.windowed_layers / self.layers
        return windowed_share * looked_back * (1 - looked_back / 2) + (1 - windowed_share) * 0.5

    @property
    def projection_parameters(self) -> int:
        """Parameters of the layer between the table of tokens and a model of another width; the output layer has one, too."""
        return self.embedding_size * self.hidden if self.embedding_size != self.hidden else 0

    @property
    def embedding_parameters(self) -> int:
        return self.vocabulary * self.embedding_size + self.positions * self.hidden + self.projection_parameters

    @property
    def head_parameters(self) -> int:
        """Parameters of the output layer, without those of the embedding, and of the last normalisation."""
        table = 0 if self.tied else self.vocabulary * self.embedding_size
        return table + self.projection_parameters + self.hidden * (1 + self.bias)

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        layers = sum(
            self.expert_layer_parameters if self.has_experts(k) else self.dense_layer_parameters
            for k in range(self.layers)
        )
        return layers + self.embedding_parameters + self.head_parameters
