"""Odd arguments to the functions of `bl.torch`: every answer is a result or one sentence."""

import shutil

import torch
from torch import nn

import baechi_lab as bl

CLUSTER = bl.Cluster.uniform(2, memory_bytes="1GB", kind="cpu")
INPUT, TARGET = torch.ones(4, 4), torch.zeros(4, 2)


def make_model():
    """A model of three layers."""
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def squared_error(outputs, targets):
    """The loss of the step."""
    return ((outputs - targets) ** 2).mean()


def calls(folder):
    """Name -> (function, arguments that are right)."""
    step = bl.torch.TorchStep("small", make_model, (INPUT,), squared_error, (TARGET,))
    graph = bl.torch.profile(step, warmup=0, runs=1)
    model = {"model": make_model(), "sample_inputs": INPUT, "atomic": ()}
    placement = {
        "step": step,
        "placement": bl.place(graph, CLUSTER, "m-etf"),
        "cluster": CLUSTER,
        "graph": graph,
        "reorder": "gpu",
        "devices": ["cpu", "cpu"],
        "micro_batches": None,
        "schedule": None,
        "pipeline": None,
        "reduction": None,
    }
    measured = {"mode": None, "warmup": 0, "runs": 1, "device": None, "optimizer_states": 0}
    estimated = {"hardware": "a100", "granularity": "layer", "precision": None, "gradients": None, "dtype": None}

    def export(**arguments):
        shutil.rmtree(folder / "exported", ignore_errors=True)
        return bl.torch.export(**arguments)

    return {
        "profile_estimated": (
            bl.torch.profile,
            {**model, **estimated, "autocast": None, "optimizer": "adam", "layout": None},
        ),
        "profile_measured": (bl.torch.profile, {**model, **measured, "split_backward": False, "accumulate": False}),
        "profile_step": (bl.torch.profile, {"model": step, **measured, "optimizer": None}),
        "trace": (bl.torch.trace, model),
        "autograd_edges": (bl.torch.autograd_edges, model),
        "estimate_layers": (bl.torch.estimate_layers, {**model, "mode": None, "dtype": None, "precision": None}),
        "distribute": (
            lambda **arguments: bl.torch.distribute(make_model(), **arguments),
            {
                "sample_inputs": INPUT,
                "cluster": CLUSTER,
                "placer": "m-etf",
                "mode": None,
                "atomic": (),
                "reorder": "gpu",
                "devices": ["cpu", "cpu"],
                "output_device": None,
                "graph": None,
                "warmup": 0,
                "runs": 1,
                "optimizer_states": 0,
            },
        ),
        "step": (
            bl.torch.TorchStep,
            {
                "name": "x",
                "build": make_model,
                "inputs": (INPUT,),
                "loss": None,
                "targets": (),
                "optimizer": None,
                "mode": None,
            },
        ),
        "execute": (
            bl.torch.execute,
            {
                **placement,
                "steps": 1,
                "warmup": 0,
                "timeout": 5.0,
                "cancel": None,
                "on_step": None,
                "return_gradients": False,
            },
        ),
        "export": (export, {**placement, "folder": folder / "exported"}),
    }
