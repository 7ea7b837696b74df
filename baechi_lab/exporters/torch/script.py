"""The text of an exported PyTorch training: it is filled in and written as it stands."""

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

HERE = Path(__file__).resolve().parent


def batches():
    """Yield (inputs, targets), each a list of tensors, once per step."""
    batch = torch.load(HERE / "batch.pt", weights_only=True)
    # >>> PLUG IN YOUR DATA HERE: replace the next line by your own source of batches <<<
    yield from itertools.repeat((batch["inputs"], batch["targets"]))


def placed_model(devices=None):
    """The model with its initial parameters, distributed as planned; `devices` replaces the planned torch devices."""
    plain = json.loads((HERE / "placed_plan.json").read_text())
    plan = Plan.from_json({**plain, "devices": devices or plain["devices"]})
    model = <MODEL>
    model.load_state_dict(torch.load(HERE / "weights.pt", weights_only=True))
    launch(model, plan)
    return model


def train(steps, devices=None):
    """Train; returns the loss of every step."""
    model, losses = placed_model(devices), []
    optimizer = <OPTIMIZER>
    torch.manual_seed(<SEED>)
    for step, (inputs, targets) in zip(range(steps), batches()):
        start = time.perf_counter()
        if optimizer is not None:
            optimizer.zero_grad(set_to_none=True)
        outputs = model(*inputs)
        first = outputs if isinstance(outputs, torch.Tensor) else next(t for t in outputs if isinstance(t, torch.Tensor))
        loss = <LOSS>(outputs, *(t.to(first.device) for t in targets))
        loss.backward()
        if optimizer is not None:
            optimizer.step()
        losses.append(loss.item())
        print(f"step {step}: loss {losses[-1]!r}, {time.perf_counter() - start:.4f} s", flush=True)
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--devices", nargs="+", help="one torch device per planned device, for example cuda:0 cuda:1")
    options = parser.parse_args()
    train(options.steps, options.devices)
'''

README = """# <NAME>, placed

    python train.py --steps 100                        # on the planned devices
    python train.py --devices cuda:0 cuda:1            # on others

Needs torch alone. `model_*.py` is the model's own source, `weights.pt` its initial parameters, `batch.pt` the batch it
was profiled with (put your data into `batches()`), `placed_plan.json` the device and order of every layer, and
`placed_*.py` the code that brings tensors to their devices and keeps the planned order.
"""
