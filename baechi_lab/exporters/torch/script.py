"""The text of an exported PyTorch training script. Names in angle brackets are filled in."""

from __future__ import annotations

from collections.abc import Mapping


def fill(template: str, values: Mapping[str, str]) -> str:
    """Returns the template with `<KEY>` replaced by the value of every key.

    >>> fill("seed <SEED>", {"SEED": "3"})
    'seed 3'
    """
    for key, text in values.items():
        template = template.replace(f"<{key}>", text)
    return template


SCRIPT = '''"""Train the placed step <NAME> with torch alone. Exported by baechi_lab; yours to change.

python train.py --steps 100
"""

import argparse
import itertools
import json
import time
from pathlib import Path

import torch
# IMPORTS
from placed_launch import launch
from placed_plan import Plan
from placed_random import seed_generators
from placed_tree import as_arguments, split_batch, tensors

HERE = Path(__file__).resolve().parent
MICRO_BATCHES = <MICRO_BATCHES>  # equal parts of the batch, whose gradients are added up
MAX_IN_FLIGHT = <MAX_IN_FLIGHT>  # forward passes run ahead of backward passes by at most so many micro-batches
MEAN = <MEAN>  # the loss of the batch is the mean of those of its micro-batches, else their sum


def batches():
    """Yield (inputs, targets) once per step: a tuple of the model's arguments, a dict of keywords, or both; a list."""
    batch = torch.load(HERE / "batch.pt", weights_only=True)
    # >>> PLUG IN YOUR DATA HERE: replace the next line by your own source of batches <<<
    yield from itertools.repeat((batch["inputs"], batch["targets"]))


def placed_model(devices=None):
    """The model with its initial parameters, distributed as planned; `devices` replaces the planned torch devices."""
    plain = json.loads((HERE / "placed_plan.json").read_text())
    plan = Plan.from_json({**plain, "devices": devices or plain["devices"]})
    seed_generators(<SEED>)  # the model may draw more than its weights: buffers that are not stored, attributes
    model = <MODEL>
    model.load_state_dict(torch.load(HERE / "weights.pt", weights_only=True))
    launch(model, plan)
    return model


def loss_of(outputs, targets):
    """The share of a micro-batch in the batch's loss."""
    first = next(tensors(outputs))
    loss = <LOSS>(outputs, *(t.to(first.device) for t in targets))
    return loss / MICRO_BATCHES if MEAN and MICRO_BATCHES > 1 else loss


def train(steps, devices=None):
    """Train; returns the loss of every step."""
    model, losses = placed_model(devices), []
    optimizer = <OPTIMIZER>
    # OFFLOAD
    seed_generators(<SEED>)
    for step, (inputs, targets) in zip(range(steps), batches()):
        start = time.perf_counter()
        model.zero_grad(set_to_none=True)
        waiting, total = [], 0.0
        parts = list(zip(split_batch(inputs, MICRO_BATCHES), split_batch(targets, MICRO_BATCHES)))
        for part, labels in parts:
            args, kwargs = as_arguments(part, model)
            outputs = model(*args, **kwargs)
            waiting.append(loss_of(outputs, labels))
            total += waiting[-1].item() if MICRO_BATCHES == 1 else waiting[-1].detach()
            if len(waiting) == MAX_IN_FLIGHT:
                waiting.pop(0).backward()
        for loss in waiting:
            loss.backward()
        if optimizer is not None:
            optimizer.step()
        losses.append(float(total))
        outputs = loss = None  # let go of before the next forward pass
        print(f"step {step}: loss {losses[-1]!r}, {time.perf_counter() - start:.4f} s", flush=True)
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--devices", nargs="+", help="one torch device per planned device, for example cuda:0 cuda:1")
    options = parser.parse_args()
    train(options.steps, options.devices)
'''

COUNTING = {
    "from placed_launch import launch\n": (
        "from placed_divisors import BatchDivisors, dividing\nfrom placed_launch import launch\n"
    ),
    "    launch(model, plan)\n": """    model.divisors = BatchDivisors(model, plan.layers, <LOSS>)  # what means divide by
    model.session, _ = launch(model, plan, always=True)
""",
    "        for part, labels in parts:\n": """        # means over what counts: every micro-batch divides as the whole batch does
        divisors = model.divisors((inputs, targets), parts)
        for (part, labels), part_divisors in zip(parts, divisors):
            model.session.divisors = part_divisors
""",
    "            waiting.append(loss_of(outputs, labels))\n": """            with dividing(part_divisors):
                waiting.append(loss_of(outputs, labels))
""",
}
"""Lines of the script -> their replacement in a step whose means divide by a number that depends on the batch."""

OFFLOAD_IMPORT = "from placed_optimizer_offload import offload_state_groups"
OFFLOAD = """    groups = json.loads((HERE / "placed_plan.json").read_text())["offloaded_state"]
    offload_state_groups(optimizer, model, groups)  # the state of these parameters waits on the host
"""
"""Lines of a script whose optimizer state waits on a host."""

README = """# <NAME>, placed

    python train.py --steps 100                        # on the planned devices
    python train.py --devices cuda:0 cuda:1            # on others

Needs <NEEDS>. `model_*.py` is the model's own source, `weights.pt` its initial parameters, `batch.pt` the batch it
was profiled with (put your data into `batches()`), `placed_plan.json` the device and order of every layer, and
`placed_*.py` the code that brings tensors to their devices and keeps the planned order.
"""

PIPELINE = '''"""Train the placed step <NAME> as a pipeline, one process per device, with torch alone. Exported by baechi_lab.

README.md says how to start it with torchrun.
"""

import argparse
import itertools
import json
import os
import socket
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
# IMPORTS
import stages
from placed_pipeline import Pipeline, connect, select_layers
from placed_random import seed_generators

HERE = Path(__file__).resolve().parent
PLAN = json.loads((HERE / "pipeline.json").read_text())


def batches():
    """Yield (inputs, targets), each a list of tensors of the whole batch, once per step; the same on all processes.

    Inputs are in the order of `PLAN["inputs"]`: the model's arguments, by position or name.
    """
    batch = torch.load(HERE / "batch.pt", weights_only=True)
    # >>> PLUG IN YOUR DATA HERE: replace the next line by your own source of batches <<<
    yield from itertools.repeat((batch["inputs"], batch["targets"]))


def split_batch(inputs, targets):
    """Equal parts of the batch along its first dimension."""
    count = PLAN["micro_batches"]
    uneven = [list(t.shape) for t in (*inputs, *targets) if len(t) % count]
    if uneven:
        raise ValueError(f"the batch has a tensor of shape {uneven[0]}; its first dimension must be a multiple of {count}")
    # as `.data`, because views count writes in place together
    parts = [[[view.data for view in t.chunk(count)] for t in tensors] for tensors in (inputs, targets)]
    return [tuple(tuple(t[k] for t in tensors) for tensors in parts) for k in range(count)]


def make_pipeline(rank, device):
    """Return the stages of this process, with the model's initial parameters."""
    seed_generators(<SEED>)  # the model may draw more than its weights: buffers that are not stored, attributes
    model = <MODEL>
    model.load_state_dict(torch.load(HERE / "weights.pt", weights_only=True))
    constants = torch.load(HERE / "constants.pt", weights_only=True)
    own = {s: plan for s, plan in enumerate(PLAN["stages"]) if rank in plan["processes"]}
    modules = {s: getattr(stages, f"Stage{s}")(select_layers(model, plan["uses"], constants)) for s, plan in own.items()}
    return Pipeline(
        {s: (modules[s], plan) for s, plan in own.items()}, PLAN["schedule"], PLAN["micro_batches"],
        loss=<LOSS>, template=PLAN["template"], stage_ranks=[plan["processes"] for plan in PLAN["stages"]], mean=PLAN["mean"],
        device=device, tied=PLAN["tied"], batch_shapes=PLAN["batch_shapes"],
    )


def train(steps, device):
    """Train; returns the loss of every step on the process of the last stage, an empty list on the others."""
    rank, here = int(os.environ["RANK"]), os.environ["WORLD_SIZE"] == os.environ["LOCAL_WORLD_SIZE"]
    processes = 1 + max(process for stage in PLAN["stages"] for process in stage["processes"])
    if int(os.environ["WORLD_SIZE"]) != processes:
        raise SystemExit(f"torchrun started {os.environ['WORLD_SIZE']} processes; this pipeline has {processes}, see README.md")
    if rank == 0 and here and {name for _, name in socket.if_nameindex()} != {"lo"}:
        print(
            "note: while this runs, other users of this machine can connect to the ports of its processes on the loopback "
            "device, which ask for no password; README.md says how to run it in a network of its own", file=sys.stderr,
        )
    if device == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    # the processes of one machine meet in a file, so that nothing listens to other machines
    meeting = HERE / f".meeting-{os.getppid()}-{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}"
    connect(rank, int(os.environ["WORLD_SIZE"]), device, str(meeting) if here else None)
    pipeline = make_pipeline(rank, device)
    pipeline.observed = False
    parameters, losses = pipeline.parameters, []
    optimizer = <OPTIMIZER> if parameters else None
    seed_generators(<SEED> + rank)  # with one seed, all processes would draw the same dropout masks
    for step, (inputs, targets) in zip(range(steps), batches()):
        start = time.perf_counter()
        for parameter in parameters:
            parameter.grad = None
        loss = pipeline.step(split_batch(inputs, targets))
        if optimizer is not None:
            optimizer.step()
        if loss is not None:
            losses.append(loss)
        if loss is not None and rank == PLAN["stages"][-1]["processes"][0]:
            print(f"step {step}: loss {loss!r}, {time.perf_counter() - start:.4f} s", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        meeting.unlink(missing_ok=True)
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--device", default=PLAN["device"], choices=("cpu", "cuda"), help="(default: %(default)s)")
    options = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("start this with torchrun, as README.md says")
    train(options.steps, options.device)
'''

PIPELINE_README = """# <NAME>, a pipeline of <PROCESSES> processes

On one machine, where the processes meet in a file and nothing listens to other machines:

    torchrun --nproc-per-node <PROCESSES> --rdzv-backend c10d --rdzv-conf store_type=file --rdzv-endpoint "$(mktemp)" \\
        train.py --steps 100

The ports through which the processes exchange tensors are open to every user of that machine. Where you do not trust all of
them, run it in a network of its own (Linux; no administrator is needed where users may make namespaces):

    unshare --map-root-user --net sh -c 'ip link set lo up && exec torchrun --nproc-per-node <PROCESSES> --rdzv-backend c10d \\
        --rdzv-conf store_type=file --rdzv-endpoint "$(mktemp)" train.py --steps 100'

On several, whose network must be closed to everyone you do not trust, on each (10.0.0.1 being one of them):

    torchrun --nnodes <PROCESSES> --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint 10.0.0.1:29500 train.py --steps 100

`--device cuda` takes a GPU per process, `--device cpu` a thread. Needs <NEEDS>. `stages.py` is the model cut into
stages, `pipeline.json` the schedule and what each stage receives and sends, `model_*.py` the model's own source, `weights.pt`
its initial parameters, `batch.pt` the batch it was profiled with (put your data into `batches()`), `placed_pipeline.py`
what hands all that to `torch.distributed.pipelining`.
"""
