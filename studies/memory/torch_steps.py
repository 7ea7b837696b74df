"""Ten PyTorch steps for the study of memory: five of this library's models, five of Hugging Face by configuration.

Small enough for any machine, in the proportions of the models they are named after; no weights are downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from baechi_lab.torch.models.registry import build
from baechi_lab.torch_steps.step import TorchStep

OWN_MODELS: dict[str, dict[str, Any]] = {
    "inception_v3": {"batch_size": 4, "image_size": 96, "classes": 100},
    "resnet50": {"batch_size": 4, "image_size": 64, "width": 16, "blocks": (2, 2, 2, 2), "classes": 100},
    "gnmt": {"batch_size": 8, "length": 8, "vocabulary": 2000, "width": 64, "layers": 3},
    "transformer": {
        "batch_size": 4,
        "length": 32,
        "vocabulary": 2000,
        "width": 64,
        "heads": 4,
        "inner": 256,
        "layers": 2,
    },
    "bert": {"batch_size": 4, "length": 32, "vocabulary": 2000, "width": 64, "heads": 4, "inner": 256, "layers": 3},
}


def _gpt2(hub: Any) -> Any:
    return hub.GPT2LMHeadModel(hub.GPT2Config(n_layer=3, n_embd=64, n_head=4, vocab_size=2000, n_positions=64))


def _llama(hub: Any) -> Any:
    sizes = {"hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 3, "num_attention_heads": 4}
    return hub.LlamaForCausalLM(hub.LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=2000, use_cache=False))


def _t5(hub: Any) -> Any:
    sizes = {
        "d_model": 64,
        "d_kv": 16,
        "decoder_start_token_id": 0,
        "d_ff": 256,
        "num_layers": 2,
        "num_heads": 4,
        "vocab_size": 2000,
    }
    return hub.T5ForConditionalGeneration(hub.T5Config(**sizes, use_cache=False))


def _vit(hub: Any) -> Any:
    sizes = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4}
    return hub.ViTForImageClassification(hub.ViTConfig(**sizes, image_size=64, patch_size=8, num_labels=100))


def _convnext(hub: Any) -> Any:
    sizes = hub.ConvNextConfig(hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 2, 1], num_labels=100)
    return hub.ConvNextForImageClassification(sizes)


HUGGING_FACE: dict[str, Callable[[Any], Any]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "t5": _t5,
    "vit": _vit,
    "convnext": _convnext,
}

NAMES = (*OWN_MODELS, *HUGGING_FACE)


def torch_step(name: str) -> TorchStep:
    """One of the ten steps.

    >>> torch_step("gnmt")
    <TorchStep 'gnmt': inputs [8, 8], [8, 8]>
    """
    if name in OWN_MODELS:
        return build(name, **OWN_MODELS[name])
    import transformers

    make, generator = HUGGING_FACE[name], torch.Generator().manual_seed(0)
    if name in ("vit", "convnext"):
        inputs = {"pixel_values": torch.randn(4, 3, 64, 64, generator=generator)}
        inputs["labels"] = torch.randint(100, (4,), generator=generator)
    else:
        tokens = torch.randint(2000, (4, 32), generator=generator)
        inputs = {"input_ids": tokens, "labels": tokens}
    return TorchStep(
        name, lambda: make(transformers), inputs, optimizer=lambda p: torch.optim.SGD(p, lr=0.01), mode="training"
    )
