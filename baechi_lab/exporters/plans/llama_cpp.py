"""llama.cpp: `--tensor-split` (layers per GPU), and `--override-tensor` (-ot) patterns for all other tensors.

With all layers offloaded, GPU g takes the layers from the sum of the shares before it on; the output counts as one more
layer. Key-value caches follow the shares, so a layer is counted where its attention was planned. A pattern is a regular
expression that is searched in the names of tensors, the first that fits counts: `blk.N.` for layer N, `output` for the head.
Where parts of a layer are on other devices, patterns name their tensors, as llama.cpp calls them (`ffn_gate_exps` for the
experts' gates, `attn_q`, ...). Operators run where their weights are.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from .layers import Unit, find_stack, spread
from .records import Request, Written, heaviest, is_call, stem

ATTENTION = "attn_[qkvos].*"
"""All tensors of attention but the norm before it, which is `attn_norm`."""

ROUTER = "(ffn_gate_inp|exp_probs_b)"
"""A router's weight, and the bias by which DeepSeek, GLM or AFMoE choose experts."""

_IN_ATTENTION = r"(^|\.)(self_attn|self_attention|attention|attn|self)\."
_TENSORS = (
    (r"shared_experts?_gate$", "ffn_gate_inp_shexp"),
    (r"shared_(experts?|mlp)\.(.*\.)?(gate_proj|w1)$", "ffn_gate_shexp"),
    (r"shared_(experts?|mlp)\.(.*\.)?(up_proj|w3)$", "ffn_up_shexp"),
    (r"shared_(experts?|mlp)\.(.*\.)?(down_proj|w2)$", "ffn_down_shexp"),
    (r"shared_(experts?|mlp)(\.|$)", "ffn_.*_shexp"),
    (r"experts\.(.*\.)?(gate_proj|w1)$", "ffn_gate_exps"),
    (r"experts\.(.*\.)?(up_proj|w3)$", "ffn_up_exps"),
    (r"experts\.(.*\.)?(down_proj|w2)$", "ffn_down_exps"),
    (r"experts(\.|$)", "ffn_.*_exps"),
    (r"(^|\.)router(\.|$)", ROUTER),
    (r"(^|\.)(q_a_proj)$", "attn_q_a"),
    (r"(^|\.)q_b_proj$", "attn_q_b"),
    (r"(^|\.)kv_a_proj_with_mqa$", "attn_kv_a_mqa"),
    (r"(^|\.)kv_b_proj$", "attn_(kv|k|v)_b"),
    (r"(^|\.)q_a_layernorm$", "attn_q_a_norm"),
    (r"(^|\.)kv_a_layernorm$", "attn_kv_a_norm"),
    (r"(^|\.)(q_norm|q_layernorm|query_layernorm)$", "attn_q_norm"),
    (r"(^|\.)(k_norm|k_layernorm|key_layernorm)$", "attn_k_norm"),
    (_IN_ATTENTION + r"gate_proj$", "attn_gate"),
    (r"(^|\.)(q_proj|query)$", "attn_q"),
    (r"(^|\.)(k_proj|key)$", "attn_k"),
    (r"(^|\.)(v_proj|value)$", "attn_v"),
    (r"(^|\.)(qkv_proj|query_key_value|c_attn|Wqkv|W_pack|qkv)$", "attn_qkv"),
    (_IN_ATTENTION + r"output\.LayerNorm$", "attn_output_norm"),
    (_IN_ATTENTION + r"(.*\.)?(o_proj|out_proj|c_proj|dense|wo)$", "attn_output"),
    (r"(^|\.)(self_attn|self_attention|attention|attn|self)$", ATTENTION),
    (r"(mixer|mamba|linear_attn)\.in_proj(_qkvz)?$", "ssm_in"),
    (r"(mixer|mamba|linear_attn)\.in_proj_ba$", "ssm_ba"),
    (r"(mixer|mamba|linear_attn)\.norm$", "ssm_norm"),
    (r"(mixer|mamba|linear_attn)\.(dt|b|c)_layernorm$", r"ssm_\2_norm"),
    (r"(mixer|mamba|linear_attn)\.(conv1d|out|x|dt)(_proj)?$", r"ssm_\2"),
    (r"(^|\.)(mixer|mamba|linear_attn)$", "ssm_.*"),
    (r"(^|\.)conv\.(conv|in_proj|out_proj)$", r"shortconv\\.\2"),
    (r"(^|\.)ln_attn$", "attn_norm_2"),
    (
        r"(^|\.)(input_layernorm|ln_1|ln_mlp|attention_(layer)?norm|self_attn_layer_norm|norm_1|operator_norm)$",
        "attn_norm",
    ),
    (
        r"(^|\.)(ffn_norm|ln_2|pre_(feedforward|mlp|ff)_layernorm|feedforward_layernorm|final_layer_norm|norm_2)$",
        "ffn_norm",
    ),
    (r"(^|\.)post_(feedforward|mlp)_layernorm$", "post_ffw_norm"),
    (r"(^|\.)post_self_attn_layernorm$", "post_attention_norm"),
    (r"(^|\.)gate_proj$|feed_forward\.w1$", "ffn_gate"),
    (r"(^|\.)(up_proj|gate_up_proj|fc1|c_fc|fc_in|dense_h_to_4h)$|feed_forward\.w3$|intermediate\.dense$", "ffn_up"),
    (r"(^|\.)(down_proj|fc2|c_proj|fc_out|dense_4h_to_h)$|feed_forward\.w2$|^output\.dense$", "ffn_down"),
    (r"^output\.LayerNorm$", "layer_output_norm"),
    (r"(^|\.)(mlp|feed_forward|ffn|block_sparse_moe|moe)$", "ffn_(gate|up|down)"),
)
"""Module within a layer -> its tensors' name in llama.cpp; the first pattern that fits counts.

Source: llama.cpp, `gguf-py/gguf/tensor_mapping.py` and `constants.py`.
"""


def write(request: Request) -> Written:
    """Returns the options, for example `-ngl 999 -sm layer -ts 3,2 -ot "^blk\\.(0|1)\\.ffn_.*_exps\\.=CPU"`."""
    stack = find_stack(request)
    gpus = request.accelerators()
    tensor_ops = [_tensor_ops(request, unit) for unit in stack.layers]
    head = heaviest(request, [i for u in stack.after for i in u.ops]) if stack.after else stack.layers[-1].device
    layers = [_layer_device(request, unit, ops_of) for unit, ops_of in zip(stack.layers, tensor_ops, strict=True)]
    planned_gpus = [gpus.get(d) for d in (*layers, head)]
    layer_gpus = _rising_split(planned_gpus, len(gpus)) if gpus else []
    shares = [layer_gpus.count(g) for g in range(len(gpus))]
    tensors = [
        {name: gpus.get(heaviest(request, ops)) for name, ops in ops_of.items() if name is not None}
        for ops_of in tensor_ops
    ]
    overrides = _overrides(tensors, layer_gpus) if gpus else []
    if gpus and planned_gpus[-1] != layer_gpus[-1]:
        overrides.append(f"^output={_buffer(planned_gpus[-1])}")
    value = {"tensor_split": shares, "override_tensor": overrides}
    split = f" -sm layer -ts {','.join(map(str, shares))}" if gpus else ""
    options = "".join(f' -ot "{pattern}"' for pattern in overrides)
    text = f"-ngl {999 if gpus else 0}{split}{options}\n"
    embedding_devices = [u.device if "rotary" in u.name else _embedding_device(request, u.device) for u in stack.before]
    unit_devices = embedding_devices + layers + [head] * len(stack.after)
    written_device = spread(request, stack.units, unit_devices)
    index = {gpu: device for device, gpu in gpus.items()}
    for k, ops_of in enumerate(tensor_ops if gpus else ()):
        for name, ops in ops_of.items():
            written_device[ops] = index[layer_gpus[k]] if name is None else heaviest(request, ops)
    backward = np.flatnonzero(request.graph.forward_of >= 0)
    written_device[backward] = written_device[request.graph.forward_of[backward]]
    sentences = []
    if stack.before:
        sentences.append("llama.cpp keeps input embeddings on the CPU, wherever they were planned")
    caches = [
        k
        for k, devices in enumerate(tensors if layer_gpus else ())
        for name, device in devices.items()
        if device != layer_gpus[k] and (not name or name.startswith("attn_"))
    ]
    if caches:
        sentences.append(
            "-ot moves weights only: the key-value cache of those layers stays where --tensor-split puts the layer"
        )
    unnamed_devices = [
        request.graph.names[i]
        for ops_of, gpu in zip(tensor_ops, layer_gpus, strict=False)
        for i in ops_of.get(None, ())
        if request.graph.persistent_bytes[i] > 0 and request.accelerators().get(int(request.device[i])) != gpu
    ]
    if unnamed_devices:
        sentences.append(
            f"what llama.cpp calls the tensors of {unnamed_devices[0]!r} is not known; they stay with their layer"
        )
    cpus = sorted({int(request.device[i]) for u in stack.units for i in u.ops} - request.accelerators().keys())
    if len(cpus) > 1:
        sentences.append(f"{', '.join(map(request.device_name, cpus))} are all 'CPU'")
    numbers = [int(u.name.rpartition(".")[2]) for u in stack.layers]
    if numbers != list(range(len(numbers))):
        sentences.append(f"layers are numbered {numbers}; llama.cpp counts from 0 without gaps")
    return Written(value, text, written_device, (*stack.unsupported, *sentences))


def _tensor_ops(request: Request, unit: Unit) -> dict[str | None, list[int]]:
    """Returns name of tensors -> the ops of a layer that read them; None for modules whose tensors have no known name.

    A layer that is one op, or on one device, has one entry, "": all of its tensors. Ops without weights go with those
    before them, calls in the layer's own code with the layer.
    """
    graph = request.graph
    if len({int(request.device[i]) for i in unit.ops}) == 1:
        return {"": list(unit.ops)}
    module_paths = [stem(graph.names[i]).partition("/")[0].removeprefix(unit.name).removeprefix(".") for i in unit.ops]
    has_experts = any("experts" in path for path in module_paths)
    norm = _norm_after_attention(module_paths)
    has_sizes = graph.persistent_bytes.any()
    names: dict[int, str | None] = {}
    for op, path in zip(unit.ops, module_paths, strict=True):
        names[op] = _tensor_name(path, has_experts, norm)
        if is_call(graph, op) and names[op] == ATTENTION and graph.persistent_bytes[op] > 0:
            names[op] = "attn_sinks"
    reads = {op: bool(graph.persistent_bytes[op] > 0) if has_sizes else not is_call(graph, op) for op in unit.ops}
    reading_names = {names[op] for op in unit.ops if reads[op]}
    # A pattern that also fits tensors on another device, such as that of a whole mixer, would move these.
    device_of = {
        name: heaviest(request, [op for op in unit.ops if reads[op] and names[op] == name])
        for name in reading_names
        if name is not None
    }
    too_wide = {a for a in device_of for b in device_of if device_of[a] != device_of[b] and re.fullmatch(a, b)}
    names = {op: None if name in too_wide else name for op, name in names.items()}
    tensor_ops: dict[str | None, list[int]] = defaultdict(list)
    tensor: str | None = None
    for op, path in zip(unit.ops, module_paths, strict=True):
        if reads[op] or names[op] in reading_names:
            tensor = names[op]
        tensor_ops[None if is_call(graph, op) and not path else tensor].append(op)
    return dict(tensor_ops)


def _norm_after_attention(module_paths: Sequence[str]) -> str:
    """Returns the tensor of `post_attention_layernorm` in a layer of these modules.

    Where the layer has no other norm behind its attention, llama.cpp's name depends on the architecture, so that either fits.
    """
    if any(re.search("pre_(feedforward|mlp)_layernorm", path) for path in module_paths):
        return "post_attention_norm"
    return (
        "ffn_norm" if any("post_self_attn_layernorm" in path for path in module_paths) else "(ffn|post_attention)_norm"
    )


def _tensor_name(path: str, has_experts: bool, norm: str) -> str | None:
    """Returns what llama.cpp calls the tensors of the module `path` of a layer; None if that is not known."""
    if re.search(r"(^|\.)post_attention_layernorm$", path):
        return norm
    if re.search(r"(^|\.)gate(\.wg)?$", path):
        return ROUTER if has_experts else "ffn_gate"
    fits = ((re.search(pattern, path), name) for pattern, name in _TENSORS)
    return next((match.expand(name) for match, name in fits if match), None)


def _layer_device(request: Request, unit: Unit, tensor_ops: dict[str | None, list[int]]) -> int:
    """Returns the device of a layer for `--tensor-split`: that of its attention, else the GPU with most of it, else the CPU."""
    attention = [i for name, ops in tensor_ops.items() if name is not None and name.startswith("attn_") for i in ops]
    gpus = request.accelerators()
    on_gpus = [i for i in unit.ops if int(request.device[i]) in gpus]
    if attention and (device := heaviest(request, attention)) in gpus:
        return device
    return heaviest(request, on_gpus) if on_gpus else unit.device


def _rising_split(planned_gpus: list[int | None], gpus: int) -> list[int]:
    """Returns the GPU that --tensor-split gives each layer: in rising order, with fewest layers off their planned GPU.

    Layers planned on a CPU (None) may be on any GPU.
    """
    costs = [0] * gpus
    choices = []
    for target in planned_gpus:
        best = [min(range(g + 1), key=lambda h: (costs[h], -h)) for g in range(gpus)]
        choices.append(best)
        costs = [costs[best[g]] + (target not in (g, None)) for g in range(gpus)]
    layer_gpus = [min(range(gpus), key=costs.__getitem__)]
    for best in reversed(choices[1:]):
        layer_gpus.append(best[layer_gpus[-1]])
    return layer_gpus[::-1]


def _overrides(tensors: list[dict[str, int | None]], layer_gpus: list[int]) -> list[str]:
    """Returns one pattern per device and set of tensors that the split puts on another device."""
    layers: dict[tuple[int | None, tuple[str, ...]], list[int]] = defaultdict(list)
    for k, devices in enumerate(tensors):
        for device in dict.fromkeys(devices.values()):
            names = tuple(name for name, d in devices.items() if d == device)
            if device != layer_gpus[k]:
                layers[device, names].append(k)
    return [
        rf"^blk\.({'|'.join(map(str, numbers))})\.{_alternatives(names)}={_buffer(device)}"
        for (device, names), numbers in layers.items()
    ]


def _alternatives(names: tuple[str, ...]) -> str:
    """Returns a pattern that matches any of the names and the dot after it."""
    if names == ("",):
        return ""
    return (names[0] if len(names) == 1 else f"({'|'.join(names)})") + r"\."


def _buffer(gpu: int | None) -> str:
    """Returns the name that -ot has for the memory of a GPU, or of the CPU (None)."""
    return "CPU" if gpu is None else f"CUDA{gpu}"


def _embedding_device(request: Request, planned_gpu: int) -> int:
    """Returns the CPU, on which llama.cpp keeps input embeddings; -1 (unknown) without a CPU in the cluster."""
    devices = () if request.cluster is None else request.cluster.devices
    cpus = [d for d, device in enumerate(devices) if device.family == "cpu"]
    return planned_gpu if planned_gpu in cpus else cpus[0] if cpus else -1
