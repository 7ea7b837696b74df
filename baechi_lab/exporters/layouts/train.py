"""Trains the model of `config.json` under the layout of `layout.json`, on as many processes as the layout has devices:

    torchrun --nproc-per-node 8 train.py --steps 10

Ranks are tensor-parallel neighbours first, then data-parallel copies, then pipeline stages. It needs torch and transformers.
Tokens are random; replace `batch` by the data set. `--weights FILE` starts from a state dictionary saved with `torch.save`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

FOLDER = Path(__file__).resolve().parent
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved-1f1b": ScheduleInterleaved1F1B}
STYLES = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
    "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),
    "rowwise_split_input": lambda: RowwiseParallel(input_layouts=Replicate()),
    "embedding_rowwise": lambda: RowwiseParallel(input_layouts=Replicate()),
}


class SkippedLayer(nn.Module):
    """Stands for a layer of another pipeline stage: returns its first argument."""

    def forward(self, hidden_states: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        return hidden_states


class ZeroPositions(nn.Module):
    """Stands for position embeddings, which the first pipeline stage has added already."""

    def forward(self, *_: object, **__: object) -> torch.Tensor:
        return torch.zeros(())


class StageModel(nn.Module):
    """One pipeline stage: token ids of the first stage or hidden states -> hidden states, or logits of the last stage."""

    def __init__(self, model: PreTrainedModel, layers: range, first: bool, last: bool) -> None:
        super().__init__()
        self.model, self.first, self.last = model, first, last
        # Names of parameters whose gradient is the sum of those of the tensor-parallel ranks.
        self.partial_gradients: list[str] = []
        children = dict(model.base_model.named_children())
        stack = max((n for n, m in children.items() if isinstance(m, nn.ModuleList)), key=lambda n: len(children[n]))
        for k in range(len(children[stack])):
            if k not in layers:
                children[stack][k] = SkippedLayer()
        names = list(children)
        for name in names:
            before = names.index(name) < names.index(stack)
            if name == stack or "rotary" in name or (first if before else last):
                continue  # every stage needs rotary embeddings
            positions = isinstance(children[name], nn.Embedding) and children[name] is not model.get_input_embeddings()
            setattr(model.base_model, name, ZeroPositions() if positions else SkippedLayer())
        if not last:
            model.set_output_embeddings(SkippedLayer())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        keyword = "input_ids" if self.first else "inputs_embeds"
        module = self.model if self.last else self.model.base_model
        return module(**{keyword: x}, use_cache=False)[0]


def stage_layers(layout: dict) -> list[range]:
    """Returns the layers of every pipeline stage."""
    bounds = [0]
    for count in layout["stage_layers"]:
        bounds.append(bounds[-1] + count)
    return [range(a, b) for a, b in itertools.pairwise(bounds)]


def divide_tensors(stage: StageModel, layout: dict, mesh: DeviceMesh) -> None:
    """Divides the stage's layers over tensor-parallel ranks; the layout's plan has styles of division for names of modules.

    The rows of an embedding are divided, too, unless the output layer uses them.
    """
    if mesh.size() == 1:
        return

    division = {}
    for name, module in stage.model.named_modules():
        name_words = name.split(".")
        for pattern, style in layout["tensor_parallel_plan"].items():
            pattern_words = pattern.split(".")
            if len(pattern_words) != len(name_words) or any(
                w not in ("*", word) for w, word in zip(pattern_words, name_words, strict=True)
            ):
                continue
            if style == "replicated_with_grad_allreduce":  # each rank has the gradient of its attention heads only
                stage.partial_gradients += [f"{name}.{parameter}" for parameter, _ in module.named_parameters()]
            elif not isinstance(module, SkippedLayer):
                division[name] = STYLES[style]()
        if stage.first and not layout["tied"] and module is stage.model.get_input_embeddings():
            division.setdefault(name, STYLES["embedding_rowwise"]())
    parallelize_module(stage.model, mesh, division)


def shards(layout: dict) -> bool:
    """Whether data-parallel copies divide parameters, gradients and optimizer states among themselves."""
    return layout["zero"] > 0 and layout["dp"] > 1


def divide_copies(stage: StageModel, layout: dict, mesh: DeviceMesh) -> None:
    """Divides parameters, gradients and optimizer states over the data-parallel copies (ZeRO 1 to 3)."""
    if not shards(layout):
        return
    # The outputs of stages may be views of gathered tensors: nothing here changes them in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    options = {"mesh": mesh, "reshard_after_forward": layout["zero"] == 3}
    if layout["precision"] == "mixed-bf16":
        reduce_dtype = torch.float32 if layout["reduce_precision"] == "float32" else torch.bfloat16
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce_dtype)
    for stack in (m for m in stage.model.base_model.children() if isinstance(m, nn.ModuleList)):
        for layer in stack:
            if not isinstance(layer, SkippedLayer):
                fully_shard(layer, **options)
    fully_shard(stage, **options)


def build_stage(layout: dict, index: int, mesh: DeviceMesh, device: torch.device, weights: Path | None) -> StageModel:
    """Returns pipeline stage `index` of the model, divided over this process's tensor- and data-parallel groups."""
    config = AutoConfig.from_pretrained(FOLDER)
    torch.manual_seed(layout["seed"])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=layout["attention"])
    if weights is not None:
        model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    model.train()
    if layout["recompute"] == "full":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    layers = stage_layers(layout)
    stage = StageModel(model, layers[index], first=index == 0, last=index == len(layers) - 1).to(device)
    divide_tensors(stage, layout, mesh["tp"])
    divide_copies(stage, layout, mesh["dp"])
    return stage


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Returns this process's part of a divided tensor; it shares its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def next_token_loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Returns the mean cross entropy of every next token."""
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def batch(layout: dict, step: int) -> torch.Tensor:
    """Returns the token ids of the global batch of a step, int64[global_batch, sequence_length]: replace it by your data."""
    generator = torch.Generator().manual_seed(layout["seed"] + step)
    return torch.randint(layout["vocabulary"], (layout["global_batch"], layout["sequence_length"]), generator=generator)


class Trainer:
    """The stages of this process, their schedule and their optimizer."""

    def __init__(self, layout: dict, device: torch.device, weights: Path | None = None) -> None:
        shape = (layout["pp"], layout["dp"], layout["tp"])
        self.layout, self.device = layout, device
        self.mesh = init_device_mesh(device.type, shape, mesh_dim_names=("pp", "dp", "tp"))
        stages, rank = len(layout["stage_layers"]), self.mesh["pp"].get_local_rank()
        self.first, self.last = rank == 0, rank == layout["pp"] - 1
        self.copy = self.mesh["dp"].get_local_rank()
        self.micro_batches = layout["global_batch"] // (layout["dp"] * layout["micro_batch"])
        self.modules = [build_stage(layout, k, self.mesh, device, weights) for k in range(rank, stages, layout["pp"])]
        self.optimizer = torch.optim.AdamW(
            [p for m in self.modules for p in m.parameters()], lr=layout["learning_rate"]
        )
        # The first and the last stage of a line hold the same matrix where the head is tied to the embedding.
        lines = self.mesh.mesh.flatten(1).T.tolist() if layout["tied"] and layout["pp"] > 1 else []
        groups = [dist.new_group([line[0], line[-1]]) for line in lines]
        self.tied_group = next(
            (g for g, line in zip(groups, lines, strict=True) if dist.get_rank() in (line[0], line[-1])), None
        )
        self.schedule = None
        if layout["pp"] > 1:
            group = self.mesh["pp"].get_group()
            pipeline_stages = [
                PipelineStage(module, k, stages, device, group=group)
                for module, k in zip(self.modules, range(rank, stages, layout["pp"]), strict=True)
            ]
            kind = SCHEDULES[layout["schedule"]]
            one_stage = kind is not ScheduleInterleaved1F1B
            self.schedule = kind(
                pipeline_stages[0] if one_stage else pipeline_stages, self.micro_batches, loss_fn=next_token_loss
            )

    def backward(self, tokens: torch.Tensor) -> float:
        """Adds this copy's gradients of its rows of the global batch; returns the loss, nan where another stage has it."""
        rows = len(tokens) // self.layout["dp"]
        own_tokens = tokens[self.copy * rows : (self.copy + 1) * rows].to(self.device)
        losses: list[torch.Tensor] = []
        mixed = self.layout["precision"] == "mixed-bf16" and not shards(self.layout)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=mixed):
            if self.schedule is not None:
                inputs = (own_tokens,) if self.first else ()
                target = {"target": own_tokens, "losses": losses} if self.last else {}
                self.schedule.step(*inputs, **target)
            else:
                (module,) = self.modules
                for k, micro in enumerate(own_tokens.split(self.layout["micro_batch"])):
                    if shards(self.layout) and self.layout["zero"] == 1:  # one reduction and one gathering a step
                        module.set_requires_gradient_sync(k == self.micro_batches - 1)
                        module.set_reshard_after_backward(k == self.micro_batches - 1)
                    loss = next_token_loss(module(micro), micro)
                    (loss / self.micro_batches).backward()
                    losses.append(loss)
        for module in self.modules:
            for name in module.partial_gradients:
                dist.all_reduce(local(module.model.get_parameter(name).grad), group=self.mesh["tp"].get_group())
        if not shards(self.layout):
            copies = self.mesh["dp"]
            for parameter in (p for m in self.modules for p in m.parameters() if p.grad is not None):
                dist.all_reduce(local(parameter.grad).div_(copies.size()), group=copies.get_group())
        if self.tied_group is not None:
            end = self.modules[0 if self.first else -1].model
            matrix = (end.get_input_embeddings() if self.first else end.get_output_embeddings()).weight
            dist.all_reduce(local(matrix.grad), group=self.tied_group)
        return float(torch.stack([loss.detach() for loss in losses]).mean()) if losses else float("nan")

    def step(self, number: int) -> float:
        """Trains one step; returns the loss of this copy."""
        self.optimizer.zero_grad()
        loss = self.backward(batch(self.layout, number))
        self.optimizer.step()
        return loss


def main() -> None:
    """Runs the command: trains, and prints the loss and the time of every step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--weights", type=Path, help="a state dictionary to start from")
    options = parser.parse_args()
    layout = json.loads((FOLDER / "layout.json").read_text(encoding="utf-8"))
    devices = layout["tp"] * layout["dp"] * layout["pp"]
    if int(os.environ.get("WORLD_SIZE", "1")) != devices:
        parser.exit(2, f"the layout has {devices} devices: start {devices} processes with torchrun\n")
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    trainer = Trainer(layout, device, options.weights)
    for number in range(options.steps):
        start_seconds = time.perf_counter()
        loss = trainer.step(number)
        if trainer.last and trainer.mesh["tp"].get_local_rank() == 0 and trainer.copy == 0:
            print(f"step {number}: loss {loss:.4f}, {(time.perf_counter() - start_seconds) * 1e3:.1f} ms", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
