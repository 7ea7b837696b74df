"""Cutting: makes the modules that a pipeline's processes run from a program and the stage of every call.

A stage takes what the previous stage sends, and those of the model's inputs that it reads itself (every process has the
batch). It sends what later stages read. torch's pipelines send to the next stage only, so a tensor that skips stages is
handed on by the stages between. Views and constants belong to no call: each stage computes those that it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from ...errors import InvalidInput, in_short
from .recording import Program


@dataclass(frozen=True, eq=False)
class StageModule:
    """One stage: `module(*received, **inputs)` returns the tuple of tensors that it sends; the last stage returns the outputs.

    `inputs` are the names (`input_0`, ...) of the model's inputs that it reads. `receives` and `sends` have shape, dtype and
    whether a gradient is needed, as plain values.
    """

    module: fx.GraphModule
    inputs: tuple[str, ...]
    receives: tuple[tuple[Any, ...], ...]
    sends: tuple[tuple[Any, ...], ...]

    @property
    def spec(self) -> dict[str, object]:
        """Everything but the module, ready for JSON."""
        return {"inputs": list(self.inputs), "receives": list(self.receives), "sends": list(self.sends)}


def cut(model: nn.Module, program: Program, stage: Sequence[int], count: int) -> list[StageModule]:
    """Cuts a program into `count` stages. `stage[i]` is the stage of call i; -1 if every stage that reads it computes it itself.

    The stage modules share the model's parameters, even if several stages use one.

    Raises `InvalidInput` for an empty stage, where a call reads from a later stage, and where one changes in place what a
    call of another stage made or uses, naming both.
    """
    cutter = _Cutter(program, stage, count)
    received_nodes = cutter.received_nodes()
    sized_node = next((node for nodes in received_nodes[:-1] for node in nodes if "sized" in node.meta), None)
    if sized_node is not None:
        raise InvalidInput(
            f"what {sized_node.meta['sized']!r} makes has a size that follows from values, and a stage would send it; put the "
            "calls that read it on its stage"
        )
    cutter.own_what_is_sent(received_nodes)
    holder = _Holder(model, program.constants)
    return [cutter.stage_module(holder, s, received_nodes) for s in range(count)]


class _Cutter:
    def __init__(self, program: Program, stage: Sequence[int], count: int):
        self.program, self.count = program, count
        self.order = {node: k for k, node in enumerate(program.graph.nodes)}
        # A call that every stage computes gets the stage of the call that changes its output in place.
        stage = list(stage)
        key = {
            call: node.target if isinstance(node.target, str) else node.target.__name__
            for node, call in reversed(program.call_of.items())
        }
        for producer, writer, why in program.together:
            if stage[producer] < 0:
                stage[producer] = stage[writer]
            if stage[producer] != stage[writer]:
                raise InvalidInput(
                    f"stage {stage[writer]} runs {in_short(key[writer])} and stage {stage[producer]} {in_short(key[producer])}, "
                    f"{why}; put both on one stage"
                )
        for writer in program.fills_output:
            if stage[writer] not in (-1, count - 1):
                raise InvalidInput(
                    f"stage {stage[writer]} runs {in_short(key[writer])}, which fills an output of the model; put it on the last "
                    "stage"
                )
        self.stage = {node: int(stage[call]) for node, call in program.call_of.items() if stage[call] >= 0}
        empty = sorted(set(range(count)) - set(self.stage.values()))
        if empty:
            raise InvalidInput(f"stage {empty[0]} of {count} has no forward call; give it one, or use fewer devices")
        self.nodes_of_stage: list[set[fx.Node]] = []
        self.reads: list[set[fx.Node]] = []
        for s in range(count):
            stack = [node for node in self.program.calls if self.stage.get(node) == s]
            if s == self.count - 1:
                stack += self.program.outputs
            nodes: set[fx.Node] = set()
            reads: set[fx.Node] = set()
            while stack:
                node = stack.pop()
                at = self.stage.get(node, s)
                if at < s:
                    reads.add(node)
                elif at > s:
                    raise InvalidInput(
                        f"stage {s} reads what {node.target!r} makes in stage {at}; the stages form no pipeline"
                    )
                elif node not in nodes:
                    nodes.add(node)
                    stack += node.all_input_nodes
                    stack += [w for w in self.program.after.get(node, ()) if self.stage.get(w, s) == s]
            self.nodes_of_stage.append(nodes)
            self.reads.append(reads)

    def received_nodes(self) -> list[list[fx.Node]]:
        """Returns, per stage, the nodes that it receives, for itself or to hand on. The last entry has the outputs."""
        nodes_of_stage: list[list[fx.Node]] = [[] for _ in range(self.count + 1)]
        nodes_of_stage[self.count] = list(self.program.outputs)
        after: set[fx.Node] = set()
        for s in reversed(range(1, self.count)):
            after = {node for node in after if self.stage[node] < s} | self.reads[s]
            nodes_of_stage[s] = sorted(after, key=self.order.__getitem__)
        return nodes_of_stage

    def own_what_is_sent(self, received_nodes: list[list[fx.Node]]) -> None:
        """Adds nodes that select from a call's output to the stage of the call, even if only later stages read them."""
        for s in range(self.count):
            stack = [node for node in received_nodes[s + 1] if self.stage.get(node, s) == s]
            while stack:
                node = stack.pop()
                if node not in self.nodes_of_stage[s] and node not in received_nodes[s]:
                    self.nodes_of_stage[s].add(node)
                    stack += node.all_input_nodes

    def stage_module(self, holder: nn.Module, s: int, received_nodes: list[list[fx.Node]]) -> StageModule:
        graph, copies = fx.Graph(), {}
        for k, node in enumerate(received_nodes[s]):
            copies[node] = graph.placeholder(f"received_{k}")
        inputs = [node for node in self.program.inputs if node in self.nodes_of_stage[s]]
        for node in inputs:
            copies[node] = graph.placeholder(str(node.target))
        for node in sorted(self.nodes_of_stage[s] - set(inputs), key=self.order.__getitem__):
            copies[node] = graph.node_copy(node, copies.__getitem__)
        # The attribute `device` of the stage says where it runs.
        for call in list(graph.nodes):
            if any(isinstance(a, torch.device) for a in (*call.args, *call.kwargs.values())):
                with graph.inserting_before(call):
                    device = graph.create_node("get_attr", "device")
                call.args = tuple(device if isinstance(a, torch.device) else a for a in call.args)
                call.kwargs = {k: device if isinstance(a, torch.device) else a for k, a in call.kwargs.items()}
        graph.output(tuple(copies[node] for node in received_nodes[s + 1]))
        module = fx.GraphModule(holder, graph, class_name=f"Stage{s}")
        input_names = tuple(str(node.target) for node in inputs)
        return StageModule(module, input_names, _specs(received_nodes[s]), _specs(received_nodes[s + 1]))


class _Holder(nn.Module):
    """The model's modules and tensors under their own names, together with the program's constants."""

    def __init__(self, model: nn.Module, constants: dict[str, torch.Tensor]):
        super().__init__()
        self.__dict__["_model"] = model
        self.device = torch.device("cpu")
        for name, tensor in constants.items():
            self.register_buffer(name, tensor)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_model"], name)


def _specs(nodes: list[fx.Node]) -> tuple[tuple[object, ...], ...]:
    return tuple(
        (shape, str(dtype).removeprefix("torch."), grad)
        for shape, dtype, grad in (node.meta["value"] for node in nodes)
    )
