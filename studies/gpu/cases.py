"""What is measured on a GPU and estimated without one: single layers, and whole models of transformers.

A case builds its module and its inputs on the device that `torch.device` names: on a GPU to be measured, on the meta device to
be estimated. The numbers make no difference to its time, but no number is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Build = Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]


@dataclass(frozen=True)
class Layer:
    """A single layer: its kind, its sizes as text, and how it is built."""

    kind: str
    sizes: str
    build: Build


class Apply(nn.Module):
    """Applies a function to its inputs; `weight` gives it a gradient to compute."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs)


class First(nn.Module):
    """A recurrent layer without its last state."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.is_cuda:
            self.layer.flatten_parameters()  # type: ignore[operator]
        outputs: torch.Tensor = self.layer(x)[0]
        return outputs


def applied(function: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> Build:
    """Returns the case of a function of tensors of these shapes, which all need gradients."""
    return lambda: (Apply(function), tuple(torch.randn(shape).requires_grad_() for shape in shapes))


def layer_on(make: Callable[[], nn.Module], *shape: int) -> Build:
    """Returns the case of a layer with one input of this shape, which needs a gradient."""
    return lambda: (make(), (torch.randn(shape).requires_grad_(),))


def layers() -> list[Layer]:
    """All single layers."""
    rows: list[Layer] = []

    def add(kind: str, sizes: str, build: Build) -> None:
        rows.append(Layer(kind, sizes, build))

    for count, inner, outer in (
        (8192, 1024, 4096),
        (8192, 4096, 1024),
        (2048, 8192, 8192),
        (512, 4096, 4096),
        (128, 4096, 11008),
        (16384, 512, 512),
        (64, 1024, 1024),
        (4096, 768, 50257),
        (2047, 1000, 3000),
        (32, 4096, 4096),
        (65536, 256, 256),
        (4096, 4096, 4096),
        (4096, 768, 50258),
        (4096, 768, 50260),
        (4096, 768, 50264),
        (4096, 1023, 1024),
        (4096, 1024, 1001),
        (8192, 2048, 5504),
    ):
        add("linear", f"{count} x {inner} -> {outer}", layer_on(lambda i=inner, o=outer: nn.Linear(i, o), count, inner))  # type: ignore[misc]
    for b, m, k, n in (
        (96, 512, 64, 512),
        (96, 512, 512, 64),
        (256, 1024, 64, 1024),
        (32, 2048, 128, 2048),
        (32, 2048, 2048, 128),
        (8, 128, 128, 128),
        (1024, 64, 64, 64),
        (16, 1000, 300, 700),
    ):
        add("bmm", f"{b} x {m} x {k} x {n}", applied(torch.bmm, (b, m, k), (b, k, n)))
    for batch, channels, size, filters, kernel, stride, groups in (
        (32, 3, 224, 64, 7, 2, 1),
        (32, 64, 56, 64, 3, 1, 1),
        (32, 64, 56, 256, 1, 1, 1),
        (32, 128, 28, 128, 3, 1, 1),
        (32, 256, 14, 256, 3, 1, 1),
        (32, 512, 7, 512, 3, 1, 1),
        (32, 256, 56, 512, 1, 2, 1),
        (8, 512, 64, 512, 3, 1, 1),
        (32, 192, 28, 192, 3, 1, 192),
        (32, 96, 56, 96, 7, 1, 96),
        (64, 144, 56, 144, 3, 2, 144),
        (64, 672, 14, 672, 5, 1, 672),
        (32, 256, 28, 256, 3, 1, 32),
        (32, 3, 224, 768, 16, 16, 1),
    ):
        add(
            "depthwise convolution" if groups == channels else "convolution",
            f"{batch} x {channels} x {size} x {size} -> {filters}, {kernel} x {kernel}, stride {stride}, {groups} groups",
            layer_on(
                lambda c=channels, f=filters, k=kernel, s=stride, g=groups: nn.Conv2d(  # type: ignore[misc]
                    c, f, k, s, 0 if k == s else k // 2, groups=g
                ),
                batch,
                channels,
                size,
                size,
            ),
        )
    add("convolution", "1-D 16 x 512 x 3000, 3", layer_on(lambda: nn.Conv1d(512, 512, 3, padding=1), 16, 512, 3000))
    add(
        "convolution",
        "3-D 4 x 32 x 16 x 56 x 56 -> 64, 3",
        layer_on(lambda: nn.Conv3d(32, 64, 3, 1, 1), 4, 32, 16, 56, 56),
    )
    add(
        "convolution",
        "transposed 16 x 256 x 32 x 32 -> 128, 2, stride 2",
        layer_on(lambda: nn.ConvTranspose2d(256, 128, 2, 2), 16, 256, 32, 32),
    )
    for count, width in ((8192, 1024), (65536, 768), (4096, 8192), (1024, 32768)):
        add("layer norm", f"{count} x {width}", layer_on(lambda w=width: nn.LayerNorm(w), count, width))  # type: ignore[misc]
        add("rms norm", f"{count} x {width}", layer_on(lambda w=width: nn.RMSNorm(w), count, width))  # type: ignore[misc]
    add("batch norm", "32 x 64 x 112 x 112", layer_on(lambda: nn.BatchNorm2d(64), 32, 64, 112, 112))
    add("batch norm", "32 x 256 x 56 x 56", layer_on(lambda: nn.BatchNorm2d(256), 32, 256, 56, 56))
    add("batch norm", "64 x 256 x 14 x 14", layer_on(lambda: nn.BatchNorm2d(256), 64, 256, 14, 14))
    add("batch norm", "64 x 2048 x 7 x 7", layer_on(lambda: nn.BatchNorm2d(2048), 64, 2048, 7, 7))
    add("group norm", "8 x 320 x 64 x 64, 32 groups", layer_on(lambda: nn.GroupNorm(32, 320), 8, 320, 64, 64))
    for count, width in ((49152, 512), (65536, 2048), (1024, 50257), (16384, 1024)):
        add("softmax", f"{count} x {width}", layer_on(lambda: nn.Softmax(-1), count, width))
    for count in (1 << 20, 1 << 24, 1 << 27):
        add("element-wise", f"add of {count}", applied(torch.add, (count,), (count,)))
        add("element-wise", f"gelu of {count}", applied(F.gelu, (count,)))
    add("element-wise", "relu of 16777216", applied(F.relu, (1 << 24,)))
    add("element-wise", "tanh of 16777216", applied(torch.tanh, (1 << 24,)))
    add("element-wise", "silu and product of 16777216", applied(lambda a, b: F.silu(a) * b, (1 << 24,), (1 << 24,)))
    add("element-wise", "dropout of 16777216", applied(lambda a: F.dropout(a, 0.1), (1 << 24,)))
    for b, h, s, d, causal in (
        (8, 16, 512, 64, False),
        (8, 16, 1024, 64, True),
        (2, 32, 4096, 128, True),
        (1, 32, 8192, 128, True),
        (32, 12, 128, 64, False),
        (32, 12, 197, 64, False),
    ):
        add(
            "attention",
            f"{b} x {h} x {s} x {d}{', causal' if causal else ''}",
            applied(
                lambda q, k, v, c=causal: F.scaled_dot_product_attention(q, k, v, is_causal=c), *[(b, h, s, d)] * 3
            ),
        )
    for count, vocabulary, width in ((8192, 50257, 1024), (8192, 128256, 4096)):
        add(
            "embedding",
            f"{count} of {vocabulary} x {width}",
            lambda c=count, v=vocabulary, w=width: (nn.Embedding(v, w), (torch.randint(v, (c,)),)),  # type: ignore[misc]
        )
    for count, vocabulary in ((8192, 50257), (4096, 32000)):
        add(
            "cross entropy",
            f"{count} x {vocabulary}",
            lambda c=count, v=vocabulary: (  # type: ignore[misc]
                Apply(F.cross_entropy),
                (torch.randn(c, v).requires_grad_(), torch.randint(v, (c,))),
            ),
        )
    add("recurrent", "LSTM 32 x 100 x 512", layer_on(lambda: First(nn.LSTM(512, 512, batch_first=True)), 32, 100, 512))
    add(
        "recurrent",
        "LSTM 64 x 50 x 1024, 2 layers",
        layer_on(lambda: First(nn.LSTM(1024, 1024, 2, batch_first=True)), 64, 50, 1024),
    )
    add("recurrent", "GRU 32 x 100 x 512", layer_on(lambda: First(nn.GRU(512, 512, batch_first=True)), 32, 100, 512))
    add("recurrent", "RNN 128 x 200 x 256", layer_on(lambda: First(nn.RNN(256, 256, batch_first=True)), 128, 200, 256))
    add("pooling", "max 3 x 3 of 32 x 64 x 112 x 112", layer_on(lambda: nn.MaxPool2d(3, 2, 1), 32, 64, 112, 112))
    add("pooling", "mean of 32 x 2048 x 7 x 7", layer_on(lambda: nn.AdaptiveAvgPool2d(1), 32, 2048, 7, 7))
    add(
        "resizing",
        "8 x 64 x 128 x 128, twice",
        layer_on(lambda: nn.Upsample(scale_factor=2, mode="bilinear"), 8, 64, 128, 128),
    )
    add("chain", "100 x tanh of 1024", applied(lambda x: _repeated(x, 100), (1024,)))
    return rows


def _repeated(x: torch.Tensor, times: int) -> torch.Tensor:
    for _ in range(times):
        x = x.tanh()
    return x


@dataclass(frozen=True)
class Model:
    """A model of transformers: its configuration, and the sizes of its inputs."""

    name: str
    fields: Mapping[str, Any]
    batch: int
    sequence: int = 1


def _gpt2(width: int, layers: int, heads: int) -> dict[str, Any]:
    return _language("gpt2", "GPT2LMHeadModel", n_embd=width, n_layer=layers, n_head=heads, vocab_size=50257)


def _language(kind: str, architecture: str, **fields: Any) -> dict[str, Any]:
    return {"model_type": kind, "architectures": [architecture], **fields}


def models() -> list[Model]:
    """All whole models, with published sizes."""
    llama = {"vocab_size": 32000, "max_position_embeddings": 4096}
    return [
        Model("gpt2", _gpt2(768, 12, 12), 8, 1024),
        Model("resnet-50", _language("resnet", "ResNetForImageClassification", num_labels=1000), 64),
        Model(
            "bert-large",
            _language(
                "bert",
                "BertForMaskedLM",
                hidden_size=1024,
                num_hidden_layers=24,
                num_attention_heads=16,
                intermediate_size=4096,
                vocab_size=30522,
            ),
            16,
            512,
        ),
        Model(
            "vit-base",
            _language(
                "vit", "ViTForImageClassification", hidden_size=768, num_hidden_layers=12, num_attention_heads=12
            ),
            64,
        ),
        Model(
            "llama-1.3b",
            _language(
                "llama",
                "LlamaForCausalLM",
                hidden_size=2048,
                num_hidden_layers=24,
                num_attention_heads=32,
                intermediate_size=5504,
                **llama,
            ),
            2,
            2048,
        ),
        Model(
            "t5-base",
            _language(
                "t5",
                "T5ForConditionalGeneration",
                d_model=768,
                d_kv=64,
                d_ff=3072,
                num_layers=12,
                num_heads=12,
                vocab_size=32128,
                decoder_start_token_id=0,
            ),
            8,
            512,
        ),
        Model(
            "convnext-tiny", _language("convnext", "ConvNextForImageClassification", num_stages=4, num_labels=1000), 64
        ),
        Model(
            "swin-tiny",
            _language(
                "swin",
                "SwinForImageClassification",
                hidden_size=768,
                num_layers=4,
                num_heads=[3, 6, 12, 24],
                num_labels=1000,
            ),
            64,
        ),
        Model(
            "whisper-small",
            _language(
                "whisper",
                "WhisperForConditionalGeneration",
                d_model=768,
                encoder_layers=12,
                decoder_layers=12,
                encoder_attention_heads=12,
                decoder_attention_heads=12,
                encoder_ffn_dim=3072,
                decoder_ffn_dim=3072,
                vocab_size=51865,
            ),
            8,
            128,
        ),
        Model("mobilenet-v2", _language("mobilenet_v2", "MobileNetV2ForImageClassification", num_labels=1000), 64),
        Model("gpt2-large", _gpt2(1280, 36, 20), 4, 1024),
        Model(
            "opt-350m",
            _language(
                "opt",
                "OPTForCausalLM",
                hidden_size=1024,
                word_embed_proj_dim=512,
                num_hidden_layers=24,
                num_attention_heads=16,
                ffn_dim=4096,
                vocab_size=50272,
                do_layer_norm_before=False,
            ),
            8,
            1024,
        ),
        Model(
            "bloom-560m",
            _language("bloom", "BloomForCausalLM", hidden_size=1024, n_layer=24, n_head=16, vocab_size=250880),
            4,
            1024,
        ),
        Model(
            "qwen2-0.5b",
            _language(
                "qwen2",
                "Qwen2ForCausalLM",
                hidden_size=896,
                num_hidden_layers=24,
                num_attention_heads=14,
                num_key_value_heads=2,
                intermediate_size=4864,
                vocab_size=151936,
                tie_word_embeddings=True,
            ),
            4,
            1024,
        ),
        Model(
            "segformer-b0",
            _language(
                "segformer",
                "SegformerForImageClassification",
                num_encoder_blocks=4,
                num_attention_heads=[1, 2, 5, 8],
                num_labels=1000,
                image_size=512,
            ),
            16,
        ),
        Model(
            "wav2vec2-base",
            _language(
                "wav2vec2",
                "Wav2Vec2ForSequenceClassification",
                hidden_size=768,
                num_hidden_layers=12,
                num_attention_heads=12,
                vocab_size=32,
            ),
            8,
            500,
        ),
        Model(
            "distilbert",
            _language(
                "distilbert", "DistilBertForSequenceClassification", dim=768, n_layers=6, n_heads=12, vocab_size=30522
            ),
            32,
            128,
        ),
        Model(
            "mixtral-small",
            _language(
                "mixtral",
                "MixtralForCausalLM",
                hidden_size=1024,
                num_hidden_layers=12,
                num_attention_heads=16,
                num_key_value_heads=8,
                intermediate_size=3584,
                num_local_experts=8,
                vocab_size=32000,
            ),
            4,
            1024,
        ),
        *unseen_models(),
    ]


def unseen_models() -> list[Model]:
    """Models that were estimated before a GPU had run them: no constant and no rule was changed after a look at them."""
    llama = {"num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True, "max_position_embeddings": 8192}
    rows: list[tuple[str, str, str, int, int, dict[str, Any]]] = [
        ("roberta-base", "roberta", "RobertaForMaskedLM", 16, 512, _ROBERTA),
        ("deberta-v3-base", "deberta-v2", "DebertaV2ForSequenceClassification", 8, 256, _DEBERTA),
        ("electra-base", "electra", "ElectraForPreTraining", 32, 256, _ELECTRA),
        ("bart-base", "bart", "BartForConditionalGeneration", 8, 512, _BART),
        ("pythia-410m", "gpt_neox", "GPTNeoXForCausalLM", 4, 1024, _wide(1024, 24, 16, 4096, 50304)),
        ("phi-1.5", "phi", "PhiForCausalLM", 2, 1024, _wide(2048, 24, 32, 8192, 51200)),
        ("llama-3.2-1b", "llama", "LlamaForCausalLM", 2, 1024, {**_wide(2048, 16, 32, 8192, 128256), **llama}),
        ("gemma-3-1b", "gemma3_text", "Gemma3ForCausalLM", 2, 1024, _GEMMA),
        ("qwen3-moe-small", "qwen3_moe", "Qwen3MoeForCausalLM", 4, 1024, _QWEN3_MOE),
        ("resnet-18", "resnet", "ResNetForImageClassification", 128, 1, _RESNET18),
        ("regnet-y-040", "regnet", "RegNetForImageClassification", 64, 1, {"num_labels": 1000}),
        ("efficientnet-b0", "efficientnet", "EfficientNetForImageClassification", 64, 1, _EFFICIENTNET),
        ("dinov2-base", "dinov2", "Dinov2ForImageClassification", 32, 1, {**_IMAGE, "image_size": 224}),
        ("beit-base", "beit", "BeitForImageClassification", 32, 1, {**_IMAGE, **_BEIT}),
        (
            "mobilevit-small",
            "mobilevit",
            "MobileViTForImageClassification",
            64,
            1,
            {"num_attention_heads": 4, "num_labels": 1000},
        ),
        ("pvt-v2-b1", "pvt_v2", "PvtV2ForImageClassification", 64, 1, _PVT_V2),
    ]
    return [
        Model(name, _language(kind, architecture, **fields), batch, sequence)
        for name, kind, architecture, batch, sequence, fields in rows
    ]


def _wide(width: int, layers: int, heads: int, inner: int, vocabulary: int) -> dict[str, Any]:
    """Returns the sizes of a language model by the names that most configurations have for them."""
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "vocab_size": vocabulary,
    }


_ROBERTA = {**_wide(768, 12, 12, 3072, 50265), "max_position_embeddings": 514}
_IMAGE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "num_labels": 1000}
_BEIT = {"use_relative_position_bias": True, "vocab_size": 8192}
_PVT_V2 = {
    "num_attention_heads": [1, 2, 5, 8],
    "depths": [2, 2, 2, 2],
    "hidden_sizes": [64, 128, 320, 512],
    "num_labels": 1000,
}
_DEBERTA = {
    **_wide(768, 12, 12, 3072, 128100),
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "type_vocab_size": 0,
    "position_biased_input": False,
}
_ELECTRA = {**_wide(768, 12, 12, 3072, 30522), "embedding_size": 768}
_BART = {
    "d_model": 768,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "encoder_attention_heads": 12,
    "decoder_attention_heads": 12,
    "encoder_ffn_dim": 3072,
    "decoder_ffn_dim": 3072,
    "vocab_size": 50265,
}
_GEMMA = {**_wide(1152, 26, 4, 6912, 262144), "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512}
_QWEN3_MOE = {
    **_wide(1024, 12, 16, 3072, 151936),
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 512,
}
_RESNET18 = {"layer_type": "basic", "depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512], "num_labels": 1000}
_EFFICIENTNET = {
    "num_hidden_layers": 64,
    "width_coefficient": 1.0,
    "depth_coefficient": 1.0,
    "image_size": 224,
    "hidden_dim": 1280,
    "num_labels": 1000,
}
