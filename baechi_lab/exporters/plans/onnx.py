"""ONNX: the model with a device for every node, in the multi-device configuration of IR version 11.

`ModelProto.configuration` names the devices. Every node gets a `device_configurations` entry, whose `sharding_spec` puts each
of its outputs on one device, undivided; where the devices follow each other as a pipeline, it has its `pipeline_stage` too.
Of the two ways to annotate (`metadata_props` is the other) this is the one that the standard gives a meaning.
"""

from __future__ import annotations

import json

import numpy as np

from ...errors import InvalidInput
from ...graph.formats.onnx_file import inline_functions, load_model, onnx_package, op_names
from .records import Request, Written

CONFIGURATION = "baechi_lab"
IR_VERSION = 11  # the first ONNX format with configurations of devices


def write(request: Request) -> Written:
    """Returns the annotated model; its text is a JSON object of node -> device.

    Raises:
        InvalidInput: no model, or one whose nodes do not occur among the graph's ops.
    """
    onnx = onnx_package()
    if request.model is None:
        raise InvalidInput("model is missing; the format 'onnx' needs the ONNX model of the graph, or its file")
    model = onnx.ModelProto()
    model.CopyFrom(
        inline_functions(request.model if isinstance(request.model, onnx.ModelProto) else load_model(request.model))
    )
    if not hasattr(model, "configuration"):
        raise InvalidInput(f"onnx {onnx.__version__} has no device configurations; version 1.18 or newer has")
    model.ir_version = max(model.ir_version, IR_VERSION)
    nodes = list(model.graph.node)
    names = op_names([n for n in nodes if n.op_type != "Constant"])
    index = request.graph.index
    device_of_node = {name: int(request.device[index[name]]) for name in names if name in index}
    if not device_of_node:
        raise InvalidInput("model has no node that is an op of the graph; give the model that was profiled")
    # The device of a node's op, else of the node that reads it first, as of nodes that were joined to one op, else 0.
    device: dict[int, int] = {}
    name_of_next = iter(names)
    for node in nodes:
        if node.op_type != "Constant" and (name := next(name_of_next)) in device_of_node:
            device[id(node)] = device_of_node[name]
    reader: dict[str, int] = {}
    for node in reversed(nodes):
        device.setdefault(id(node), next((reader[v] for v in node.output if v in reader), 0))
        reader |= dict.fromkeys(node.input, device[id(node)])
    order = [device[id(n)] for n in nodes]
    # The stage of each device, unless nodes return to a device that they left.
    devices_in_order = [d for k, d in enumerate(order) if k == 0 or order[k - 1] != d]
    stages = (
        {d: k for k, d in enumerate(devices_in_order)} if len(set(devices_in_order)) == len(devices_in_order) else None
    )
    count = int(request.device.max(initial=0)) + 1 if request.cluster is None else request.cluster.n
    del model.configuration[:]
    model.configuration.add(
        name=CONFIGURATION, num_devices=count, device=[request.device_name(d) for d in range(count)]
    )
    for node in model.graph.node:
        del node.device_configurations[:]
        device_index = device[id(node)]
        entry = node.device_configurations.add(configuration_id=CONFIGURATION)
        for value in filter(None, node.output):
            entry.sharding_spec.add(tensor_name=value, device=[device_index])
        if stages is not None:
            entry.pipeline_stage = stages[device_index]
    written_device = np.full(request.graph.n, -1, np.int32)
    for name, d in device_of_node.items():
        written_device[index[name]] = d
    text = json.dumps({name: request.device_name(d) for name, d in device_of_node.items()}, indent=1) + "\n"
    missing = len(names) - len(device_of_node)
    sentences = []
    training = int(np.count_nonzero(written_device < 0))
    if training:
        sentences.append(
            f"{training} ops of the graph (backward pass, updates) are not in the model, which is a forward pass"
        )
    if missing:
        sentences.append(f"{missing} nodes of the model are no ops of the graph; they go with the node that reads them")
    if stages is None:
        sentences.append(
            "nodes go back to a device that they left, so none has a pipeline_stage; the devices are written"
        )
    return Written(model, text, written_device, tuple(sentences), {"": model.SerializeToString()})
