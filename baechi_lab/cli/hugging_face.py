"""`profile hf:config.json`: a Hugging Face model by its configuration, estimated; needs torch and transformers."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from ..errors import InvalidInput, MissingPackage
from ..graph import OpGraph
from . import options

PREFIX = "hf:"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that only models by configuration have. They share --inference and --optimizer-states with programs."""
    group = parser.add_argument_group("models by configuration (hf:config.json)")
    group.add_argument("--sequence-length", metavar="N", help="tokens per sample (512)")
    group.add_argument(
        "--dtype",
        metavar="NAME",
        help="type of all weights, as --precision: bf16, fp16 or fp32 (what the configuration says)",
    )
    group.add_argument(
        "--autocast",
        metavar="NAME",
        help="type that torch.autocast uses for products: bf16 or fp16; the weights stay as they are",
    )
    group.add_argument(
        "--optimizer",
        metavar="NAME",
        help="count the states and the update of this optimizer: sgd, momentum, adam, ...",
    )
    group.add_argument("--granularity", metavar="NAME", help="what one op of the graph is: layer or operator (layer)")


_OPTIONS = ("sequence_length", "dtype", "autocast", "optimizer", "granularity")


def refuse_options(arguments: argparse.Namespace) -> None:
    """Raises `InvalidInput` if options of models by configuration are given with another model."""
    option = next((key for key in _OPTIONS if getattr(arguments, key)), None)
    if option is not None:
        raise InvalidInput(f"--{option.replace('_', '-')} is for models by configuration (hf:config.json)")


def profile(arguments: argparse.Namespace, hardware: str | Sequence[str]) -> tuple[OpGraph, dict[str, object]]:
    """Returns the graph and facts to print."""
    if arguments.mode == "measured":
        raise InvalidInput("--mode is 'measured'; a model by configuration has no weights, and is estimated")
    if arguments.param:
        raise InvalidInput("-p is for benchmark models; a model by configuration has its parameters in the file")
    if arguments.execution_trace:
        raise InvalidInput("--execution-trace goes with a Kineto trace, not with a model by configuration")
    states = arguments.optimizer_states
    start_seconds = time.perf_counter()
    try:
        from ..profilers.torch.hugging_face import GIVE_INPUTS, hugging_face
        from ..profilers.torch.profile import profile as profile_layers
        from ..torch_steps.tracing import FailedCall
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingPackage.of("torch", "transformers", "a Hugging Face configuration") from None
    path = arguments.model.removeprefix(PREFIX)
    batch, length = arguments.batch_size or "1", arguments.sequence_length or "512"
    model, inputs = hugging_face(
        path,
        batch_size=options.whole_number(batch, "--batch-size", lowest=1),
        sequence_length=options.whole_number(length, "--sequence-length", lowest=1),
        labels=not arguments.inference,
    )
    try:
        graph = profile_layers(
            model,
            inputs,
            hardware=hardware,
            mode="inference" if arguments.inference else "training",
            granularity=arguments.granularity or "layer",
            precision=arguments.precision,
            gradients=arguments.gradients,
            dtype=arguments.dtype,
            autocast=arguments.autocast,
            optimizer=arguments.optimizer,
            optimizer_states=0 if states is None else options.whole_number(states, "--optimizer-states", lowest=0),
        )
    except FailedCall as error:
        raise InvalidInput(
            f"{path}: {error}; its sizes may not fit together, or it takes other inputs: {GIVE_INPUTS}"
        ) from error
    facts = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "mode": "estimated",
        "device": hardware if isinstance(hardware, str) else ", ".join(hardware),
        "seconds": time.perf_counter() - start_seconds,
    }
    quantization = graph.info["estimate"].get("quantization")
    return graph, facts if quantization is None else {"quantization": quantization, **facts}
