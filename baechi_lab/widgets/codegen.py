"""Prints a setting as lines of library code, and reads such code back by parsing literals; nothing is executed."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..checks import check_whole
from ..errors import InvalidInput
from ..graph import Cluster, Device, Link
from ..graph.hardware import HOST
from ..graph.link import FREE
from ..graph.link_presets import LINKS as LINK_PRESETS
from ..graph.link_presets import named_link
from ..passes.optimize import PASSES
from ..placers.registry import pipeline_parameters, placer_class
from ..profilers.precision import profile_mode
from ..simulator.pipelined_graph import pipeline_options
from .setting import FILE, GIVEN_SUBJECT, MODEL, Setting

Built = tuple[str, Mapping[str, object]]
"""A benchmark model and its parameters other than the defaults."""


def to_code(
    setting: Setting,
    *,
    variable: str = "graph",
    built: Built | None = None,
    is_torch: bool = False,
    export: str = "",
) -> str:
    """Returns the library code of a setting, one stage per line; it runs as it is if the library can make the source.

    Otherwise a comment says what the variable `variable` ("graph" or "step") must hold. `built` is the model of a given step;
    `is_torch` says that the step is PyTorch's, whose batch is cut into micro-batches. `export` is a folder, for which a line is
    added that writes the training script.

    >>> print(to_code(Setting(Cluster.uniform(2, memory_bytes=4), source="file:a.json")))
    import baechi_lab as bl
    graph = bl.load_graph('a.json')
    cluster = bl.Cluster.uniform(2, memory_bytes=4, link=bl.Link(134.0, 0.0001754), comm='sequential')
    coarse = bl.optimize(graph, cluster, passes=('colocation', 'coplacement', 'fusion'), forward_only='auto')
    placement = bl.place(coarse, cluster, 'm-etf')
    timeline = bl.simulate(graph, cluster, placement, scheduler=None)
    """
    graph_name, devices = "coarse" if setting.passes else "graph", "cluster" if setting.replicas == 1 else "share"
    lines = [
        "import baechi_lab as bl",
        *_source_lines(setting, variable, built, is_torch),
        *([f"graph = bl.recompute(graph{_keywords(setting.recomputation)})"] if setting.recompute else []),
        f"cluster = {cluster_code(setting.cluster)}",
    ]
    if setting.replicas > 1:
        lines.append(f"share = {cluster_code(setting.share)}")
    if setting.passes:
        options = f"passes={setting.passes!r}, forward_only={setting.forward_only!r}"
        lines.append(f"coarse = bl.optimize(graph, {devices}, {options})")
    lines += _placing_lines(setting, graph_name, devices)
    if setting.replicas > 1:
        copies = f"tuple(range(d, {setting.cluster.n}, {setting.share.n}))"
        lines.append(
            f"placement = placement.replace(replicas=[{copies} for d in sorted(set(placement.device.tolist()))])"
        )
    pipeline = _keywords(setting.pipeline)
    lines.append(f"timeline = bl.simulate(graph, cluster, placement, scheduler={setting.scheduler!r}{pipeline})")
    if export:
        devices_text = f", cluster=cluster, devices={torch_names(setting.cluster)!r}" if is_torch else ""
        lines.append(f"bl.export(step, placement, {export!r}, graph=graph{devices_text}{pipeline})")
    return "\n".join(lines)


def _placing_lines(setting: Setting, graph_name: str, devices: str) -> list[str]:
    """Returns the lines that place and move, after those of the placement from which the placer starts."""
    lines = [] if setting.start is None else _placing_lines(setting.start, graph_name, devices)
    start = "" if setting.start is None else ", start=placement"
    lines.append(
        f"placement = bl.place({graph_name}, {devices}, {setting.placer!r}{_keywords(setting.placer_params)}{start})"
    )
    if setting.moves:
        lines.append(f"placement = bl.move(placement, graph, {devices}, {list(setting.moves)!r})")
    return lines


def torch_names(cluster: Cluster) -> list[str]:
    """Returns torch's name of each device, attached or not: GPUs in their order, and CPUs.

    >>> torch_names(Cluster.uniform(2)), torch_names(Cluster.uniform(2, kind="cpu"))
    (['cuda:0', 'cuda:1'], ['cpu', 'cpu'])
    """
    is_gpu = [device.family not in ("cpu", HOST) for device in cluster.devices]
    return [f"cuda:{sum(is_gpu[:d])}" if gpu else "cpu" for d, gpu in enumerate(is_gpu)]


def _source_lines(setting: Setting, variable: str, built: Built | None, is_torch: bool) -> list[str]:
    options = f"hardware={setting.hardware!r}" if setting.profile == "estimated" else "mode='measured'"
    profile = f"graph = bl.profile(step, {options})"
    if setting.is_program:
        batch = {} if setting.built_batch is None else {"batch_size": setting.built_batch}
        return [f"graph = bl.profile_program({setting.path!r}, hardware={setting.hardware!r}{_keywords(batch)})"]
    if setting.path:
        return [f"graph = bl.load_graph({setting.path!r})"]
    if setting.model or (variable == "step" and built is not None):
        name, params = (setting.model, setting.model_params) if setting.model or built is None else built
        size = {} if setting.built_batch is None else {"batch_size": setting.built_batch}
        return [f"step = bl.models.build({name!r}{_keywords({**params, **size})})", profile]
    if is_torch:
        cut = "" if setting.micro_batches is None else f".micro_batches({setting.micro_batches})[0]"
        return ["# step: your bl.torch.TorchStep", f"graph = bl.profile(step{cut}, {options})"]
    if variable == "step":
        return ["# step: your training step, as bl.trace(function, *inputs) made it", profile]
    return ["# graph: your graph, the one that bl.Workbench(graph, ...) was opened with"]


def _keywords(values: Mapping[str, object]) -> str:
    return "".join(f", {key}={value!r}" for key, value in values.items())


def cluster_code(cluster: Cluster) -> str:
    """Returns the code of a cluster: `uniform` or `machines` if it is like one of these, else all devices and links.

    >>> cluster_code(Cluster.uniform(2, memory_bytes="24GB", link="pcie4"))
    "bl.Cluster.uniform(2, memory_bytes=24000000000, link='pcie4', comm='sequential')"
    >>> cluster_code(Cluster.machines(8, 4, memory_bytes="80GB", link="nvlink3", network="infiniband-hdr"))
    "bl.Cluster.machines(8, 4, memory_bytes=80000000000, link='nvlink3', network='infiniband-hdr', comm='duplex')"
    """
    first, link = cluster.devices[0], cluster.link
    like = Cluster.uniform(cluster.n, memory_bytes=first.memory_bytes, link=FREE, kind=first.kind, speed=first.speed)
    comm = f"comm={cluster.comm!r}" + (f", kind={first.kind!r}" if first.kind != "gpu" else "")
    if like.devices == cluster.devices and isinstance(link, Link):
        speed = "" if first.speed == 1.0 else f", speed={first.speed!r}"
        link_code = _named_link_code(link, first.kind)
        return f"bl.Cluster.uniform({cluster.n}, memory_bytes={first.memory_bytes}, link={link_code}, {comm}{speed})"
    if like.devices == cluster.devices and not isinstance(link, Link) and first.speed == 1.0:
        inside, network = link[0][min(1, cluster.n - 1)], link[0][-1]
        per_machine = sum(one == inside for one in link[0])
        machines = [
            [inside if a // per_machine == b // per_machine else network for b in range(cluster.n)]
            for a in range(cluster.n)
        ]
        if per_machine < cluster.n and cluster.n % per_machine == 0 and cluster == cluster.replace(link=machines):
            links = f"link={_named_link_code(inside, first.kind)}, network={_named_link_code(network, first.kind)}"
            return (
                f"bl.Cluster.machines({cluster.n}, {per_machine}, memory_bytes={first.memory_bytes}, {links}, {comm})"
            )
    devices = ", ".join(f"bl.Device({d.name!r}, {d.kind!r}, {d.memory_bytes}, {d.speed!r})" for d in cluster.devices)
    return f"bl.Cluster(({devices},), link={_link_code(link)}, comm={cluster.comm!r})"


def _named_link_code(link: Link, kind: str) -> str:
    """Returns the name of a link between devices of `kind` if it has one, else its numbers."""
    names = [name for name in LINK_PRESETS if named_link(name, kind) == link]
    return repr(names[0]) if names else _link_code(link)


def _link_code(link: Link | Sequence[Sequence[Link]]) -> str:
    if isinstance(link, Link):
        overhead = f", overhead_us={link.overhead_us!r}" if link.overhead_us else ""
        return f"bl.Link({link.latency_us!r}, {link.us_per_byte!r}{overhead})"
    return "[" + ", ".join("[" + ", ".join(_link_code(x) for x in row) + "]" for row in link) + "]"


# -- reading ------------------------------------------------------------------------------------------


def from_code(text: str) -> Setting:
    """Reads the setting from code of `to_code`, which may be edited by hand in the same form.

    Raises:
        InvalidInput: the code has another call than those of the workbench; the message names the line.
    """
    fields: dict[str, Any] = {}
    try:
        for line in ast.parse(text).body:
            _read(line, fields)
    except SyntaxError as error:
        place = f"line {error.lineno}: " if error.lineno else ""
        raise InvalidInput(f"{place}this is not Python code: {error.msg}") from error
    except (UnicodeError, RecursionError, MemoryError) as error:
        raise InvalidInput("this is not code that the workbench writes: no such text, or nested too deeply") from error
    if "cluster" not in fields:
        raise InvalidInput("no line makes the cluster (cluster = bl.Cluster...)")
    if "placer" not in fields:
        raise InvalidInput("no line places the graph (placement = bl.place(...))")
    starts = fields.pop("starts", [])
    for placing in (*starts, fields):
        placer_class(str(placing["placer"]))
    fields.setdefault("passes", ())
    # The fields of the setting of all micro-batches and replicas, from those of the lines for one of them.
    pipeline_options(fields.get("micro_batches"), fields.get("schedule"))
    if (profiled_micro_batches := fields.pop("profiled_micro_batches", None)) not in (
        None,
        fields.get("micro_batches"),
    ):
        raise InvalidInput(
            f"micro_batches is {fields.get('micro_batches')}; the profile is of one of {profiled_micro_batches} micro-batches"
        )
    if fields.get("batch_size") is not None:
        fields["batch_size"] = check_whole("batch_size", fields["batch_size"]) * (fields.get("micro_batches") or 1)
    share = fields.pop("share", None)
    if share is not None:
        fields["replicas"] = fields["cluster"].n // share.n
    last = {key: fields[key] for key in ("placer", "params", "moves") if key in fields}
    setting: Setting | None = None
    for placing in (*starts, last):
        # Parameters that follow from micro-batches are not written.
        pipeline = {key: fields[key] for key in ("micro_batches", "schedule") if fields.get(key) is not None}
        implied_params = pipeline_parameters(placing["placer"], pipeline)
        params = {
            key: value
            for key, value in placing["params"].items()
            if key not in implied_params or implied_params[key] != value
        }
        setting = Setting(**{**fields, "moves": (), **placing, "params": params, "start": setting})
    return setting  # type: ignore[return-value]


def _read(line: ast.stmt, fields: dict[str, Any]) -> None:
    value = line.value if isinstance(line, (ast.Assign, ast.Expr)) else None
    if isinstance(line, (ast.Import, ast.ImportFrom)):
        return
    if not isinstance(value, ast.Call):
        raise InvalidInput(f"line {line.lineno}: {ast.unparse(line)!r:.80} is not a call that the workbench writes")
    name = _function_name(value)
    if name in ("Cluster", "Cluster.uniform", "Cluster.machines"):
        is_share = isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "share"
        fields["share" if is_share else "cluster"] = _value(value)
        return
    if name.endswith(".replace"):  # the replicas, which the share tells
        return
    if name not in CALLS:
        calls = ", ".join(f"bl.{k}" for k in CALLS)
        raise InvalidInput(f"line {line.lineno}: bl.{name} is not a call that the workbench writes ({calls})")
    if any(k.arg is None for k in value.keywords):
        raise InvalidInput(f"line {line.lineno}: ** is not something that the workbench writes")
    options = {k.arg: _value(k.value) for k in value.keywords if k.arg and not isinstance(k.value, ast.Name)}
    args = [a for a in value.args if not isinstance(a, ast.Name)]
    if name == "profile" and len(args) == 1 and (cut := _CUT.fullmatch(ast.unparse(args[0]))):
        fields["profiled_micro_batches"], args = int(cut[1]), []
    _read_call(name, fields, [_value(a) for a in args], options, line.lineno)


_CUT = re.compile(r"step\.micro_batches\((\d+)\)\[0\]")
"""The code of the micro-batch of a PyTorch step that is profiled."""


def _function_name(call: ast.Call) -> str:
    name = ast.unparse(call.func)
    return name.removeprefix("bl.") if name.startswith("bl.") else name


def _value(node: ast.expr) -> object:
    """Returns the value of a literal, or of a record that is part of a cluster."""
    if isinstance(node, ast.Call):
        name = _function_name(node)
        makers: dict[str, Any] = {
            "Link": Link,
            "Device": Device,
            "Cluster": Cluster,
            "Cluster.uniform": Cluster.uniform,
            "Cluster.machines": Cluster.machines,
        }
        if name not in makers:
            raise InvalidInput(f"line {node.lineno}: {name}(...) cannot stand here (known: {', '.join(makers)})")
        options = {k.arg: _value(k.value) for k in node.keywords if k.arg}
        try:
            return makers[name](*(_value(a) for a in node.args), **options)
        except TypeError as error:
            raise InvalidInput(f"line {node.lineno}: {ast.unparse(node)!r:.80}: {error}") from error
    if isinstance(node, (ast.List, ast.Tuple)):
        items = [_value(x) for x in node.elts]
        return items if isinstance(node, ast.List) else tuple(items)
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise InvalidInput(f"line {node.lineno}: {ast.unparse(node)!r:.80} is not a plain value") from error


def _first(args: list[Any], line: int, meaning: str) -> Any:
    if not args:
        raise InvalidInput(f"line {line}: {meaning} is missing")
    return args[0]


CALLS = tuple("load_graph profile_program models.build profile recompute optimize place move simulate export".split())
"""Functions of `bl` in the code of the workbench, besides those of the cluster and the replicas."""


def _read_call(name: str, fields: dict[str, Any], args: list[Any], options: dict[str, Any], line: int) -> None:
    match name:
        case "load_graph":
            fields["source"] = f"{FILE}{_first(args, line, 'the path')}"
        case "profile_program":
            fields["source"] = f"{FILE}{_first(args, line, 'the path')}"
            fields["hardware"] = options.get("hardware", Setting.hardware)
            fields["batch_size"] = options.get("batch_size")
        case "models.build":
            fields["source"] = f"{MODEL}{_first(args, line, 'the model')}"
            fields["batch_size"] = options.pop("batch_size", None)
            fields["model_params"] = options
        case "profile":
            fields.setdefault("source", GIVEN_SUBJECT)
            fields["profile"] = profile_mode(options.get("mode"), options.get("hardware"))
            if options.get("hardware") is not None:
                fields["hardware"] = options["hardware"]
        case "recompute":
            fields["recompute"] = str(_first([*args, *options.values()], line, "what is kept"))
        case "optimize":
            fields["passes"] = options.get("passes", PASSES)
            fields["forward_only"] = options.get("forward_only", "auto")
        case "place":
            if "placer" in fields:  # the placement from which this placer starts
                earlier = {key: fields.pop(key) for key in ("placer", "params", "moves") if key in fields}
                fields.setdefault("starts", []).append(earlier)
            fields["placer"] = _first(args, line, "the placer")
            fields["params"] = options
        case "move":
            moves = _first(args, line, "what to move")
            fields["moves"] = tuple(moves.items()) if isinstance(moves, dict) else moves
        case "simulate":
            fields |= {key: options.get(key) for key in ("scheduler", "micro_batches", "schedule")}
