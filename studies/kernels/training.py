"""Predicts training steps of whole models that were measured on twelve GPUs.

    python -m studies.kernels.training data/training --store studies/results/kernel_training.json

BERT on SQuAD with sequences of 384 tokens, and ResNet-50 with images of 224 x 224, trained by NVIDIA's examples on one GPU, in
mixed precision and in float32 (TF32 where the GPU has it). A prediction is the sum of all kernels. It lacks reading the data,
and clipping the gradients in mixed precision. No constant of the kernel model was fitted to these rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import BertConfig, BertForQuestionAnswering, ResNetConfig, ResNetForImageClassification

import baechi_lab as bl
from baechi_lab.graph.hardware import Hardware
from baechi_lab.profilers.kernel_model import kernel_us
from baechi_lab.profilers.work import Kernel
from studies.csv_records import read_records
from studies.results import store

SEQUENCE, IMAGE, CLASSES = 384, 224, 1000
BERT_ADAM_BYTES = 38 * 4.0
"""Bytes that the optimizer of NVIDIA's example moves per parameter in float32. Its operations, one after another, read or write
38 numbers: of the norm (1), clipping (4), both averages (10), their quotient (7), weight decay (5) and the update (7), and of
gradients that are set to zero and added to (4). In mixed precision, the example has a fused optimizer."""
BERT_SIZES = {
    "bert-base": {},
    "bert-large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
}


class TrainingRun(NamedTuple):
    """Measured training on a device: samples in a step, and sequences or images per second."""

    device: str
    model: str
    precision: str
    batch: int
    per_second: float


def read_runs(folder: Path) -> list[TrainingRun]:
    """Returns the rows of `lambda.csv`."""
    return read_records(folder / "lambda.csv", TrainingRun)


def model_and_inputs(name: str, batch: int) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Returns a model without weights, and a batch of its inputs."""
    with torch.device("meta"):
        index = torch.empty(batch, dtype=torch.long)
        if name == "resnet-50":
            resnet = ResNetForImageClassification(ResNetConfig.from_dict({"num_labels": CLASSES}))
            return resnet, {"pixel_values": torch.empty(batch, 3, IMAGE, IMAGE), "labels": index}
        bert = BertForQuestionAnswering(BertConfig.from_dict({**BERT_SIZES[name], "attn_implementation": "eager"}))
        tokens = torch.empty(batch, SEQUENCE, dtype=torch.long)
        texts = dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), tokens)
        return bert, {**texts, "start_positions": index, "end_positions": index}


def predicted_seconds(training_runs: Sequence[TrainingRun]) -> list[float]:
    """Returns the seconds of a step of every run."""
    devices = sorted({run.device for run in training_runs})
    seconds: dict[tuple[str, str, int], dict[str, float]] = {}
    for _, name, precision, batch, _ in training_runs:
        if (name, precision, batch) not in seconds:
            model, inputs = model_and_inputs(name, batch)
            runs_bert_adam = name != "resnet-50" and precision == "tf32"
            optimizer = None if runs_bert_adam else "sgd" if name == "resnet-50" else "adam"
            graph = bl.torch.profile(model, inputs, hardware=devices, precision=precision, optimizer=optimizer)
            durations = {device: float(graph.duration_by_kind[device].sum()) for device in devices}
            if runs_bert_adam:
                update = Kernel(moved_bytes=BERT_ADAM_BYTES * sum(p.numel() for p in model.parameters()))
                durations = {device: us + kernel_us(update, Hardware.named(device)) for device, us in durations.items()}
            seconds[name, precision, batch] = {device: us / 1e6 for device, us in durations.items()}
    return [seconds[run.model, run.precision, run.batch][run.device] for run in training_runs]


def main(arguments: Sequence[str] | None = None) -> None:
    """Predicts, prints and stores every row."""
    parser = argparse.ArgumentParser(prog="python -m studies.kernels.training", description=__doc__)
    parser.add_argument("data", type=Path, help="folder of the measurements")
    parser.add_argument("--store", type=Path, required=True, help="the file to write")
    options = parser.parse_args(arguments)
    training_runs = read_runs(options.data)
    errors = [
        seconds * run.per_second / run.batch - 1
        for run, seconds in zip(training_runs, predicted_seconds(training_runs), strict=True)
    ]
    for run, error in zip(training_runs, errors, strict=True):
        print(*run, f"{error:+.0%}")
    mean_error = sum(map(abs, errors)) / len(errors)
    print(f"mean {mean_error:.1%}, worst {max(errors, key=abs):+.0%}")
    store(
        options.store,
        "python -m studies.kernels.training data/training --store FILE",
        mean_error=round(mean_error, 4),
        rows=[{**run._asdict(), "error": round(error, 4)} for run, error in zip(training_runs, errors, strict=True)],
    )


if __name__ == "__main__":
    main()
