"""Options that several sub-commands share, and the records built from them."""

from __future__ import annotations

import argparse
import ast
import math
import os
from collections.abc import Sequence
from typing import Any

from ..errors import FormatError, InvalidInput, UnknownNameError, in_short
from ..graph import COMMUNICATION_MODES, Cluster, Device, Link, OpGraph, load_cluster
from ..graph.costs import estimated_hardware
from ..graph.device import default_memory, device_count
from ..graph.hardware import FAMILIES, HARDWARE, kind_named, known_kind
from ..graph.link_presets import default_link, named_link
from ..graph.units import MOST_US, parse_bytes

GRAPH = "graph file: .json, .json.gz, .stg, a trace, or PipeDream's graph.txt"
"""What `--help` says of GRAPH."""


def add_cluster(parser: argparse.ArgumentParser, devices: int = 4) -> None:
    """Adds --devices, --memory, --speed, --cluster, --kind, --link, --link-latency, --link-us-per-byte, --comm."""
    group = parser.add_argument_group("cluster")
    group.add_argument("--devices", metavar="N", help=f"number of devices ({devices})")
    parser.set_defaults(default_devices=str(devices))
    group.add_argument(
        "--memory",
        metavar="SIZE[,SIZE...]",
        help="memory per device, one for all or one each (that of the kind, 8GB for kinds that are no named hardware)",
    )
    group.add_argument(
        "--speed", metavar="X[,X...]", help="speed relative to the profiled device, one for all or one each (1)"
    )
    group.add_argument(
        "--cluster",
        metavar="FILE",
        help="a cluster file, as `baechi-lab links -o` writes it, in place of the options here",
    )
    add_transfers(parser)


def add_transfers(parser: argparse.ArgumentParser) -> None:
    """Adds --kind, --link, --link-latency, --link-us-per-byte, --comm."""
    group = parser.add_argument_group("devices and links")
    group.add_argument(
        "--kind",
        help="device kind: named hardware (h100, ...) or gpu, cpu, tpu (the hardware that the costs are estimated for, else gpu)",
    )
    group.add_argument(
        "--link",
        metavar="NAME",
        help="link by name: nvlink, pcie, nvlink4, pcie5, infiniband-ndr, ethernet-100g, ... (the fastest of the kind; PCIe "
        "3.0 through host memory, 134 us and 0.0001754 us per byte, for kinds that are no named hardware)",
    )
    group.add_argument("--link-latency", metavar="US", help="latency of a transfer in microseconds (that of the link)")
    group.add_argument(
        "--link-us-per-byte", metavar="US", help="microseconds per byte of a transfer (those of the link)"
    )
    group.add_argument(
        "--comm", metavar="MODE", help=f"how transfers share the links: {', '.join(COMMUNICATION_MODES)} (sequential)"
    )


_CLUSTER_OPTIONS = ("devices", "memory", "speed", "kind", "link", "link_latency", "link_us_per_byte", "comm")
"""Options that describe a cluster."""


def cluster_from(arguments: argparse.Namespace, graph: OpGraph | None = None) -> Cluster:
    """Returns the cluster in the file of --cluster, else the cluster that the options describe for `graph`.

    Raises:
        InvalidInput: the file, and an option in whose place it stands; or an option that no cluster can have.
    """
    if arguments.cluster is not None:
        option = next((name for name in _CLUSTER_OPTIONS if getattr(arguments, name) is not None), None)
        if option is not None:
            raise InvalidInput(
                f"--cluster is {in_short(arguments.cluster)} and --{option.replace('_', '-')} is given too; "
                "give the file or the options"
            )
        return load_cluster(arguments.cluster)
    count_text = arguments.default_devices if arguments.devices is None else arguments.devices
    count = device_count(whole_number(count_text, "--devices", lowest=1), "--devices")
    kind, link, comm = transfers_from(arguments, graph)
    sizes = [str(memory_of(kind))] if arguments.memory is None else arguments.memory.split(",")
    memory = _per_device("--memory", [parse_bytes(m, "--memory") for m in sizes], count)
    speeds = ["1"] if arguments.speed is None else arguments.speed.split(",")
    speed = _per_device("--speed", [number(s, "--speed", 1 / MOST_US) for s in speeds], count)
    devices = tuple(Device(f"{kind}:{i}", kind, memory[i], speed[i]) for i in range(count))
    return Cluster(devices, link, comm)


def cluster_code(arguments: argparse.Namespace, cluster: Cluster) -> str:
    """Returns Python code for the cluster that `cluster_from` has returned."""
    if arguments.cluster is not None:
        return f"bl.load_cluster({arguments.cluster!r})"
    first, link = cluster.devices[0], f"link=bl.{cluster.link!r}, comm={cluster.comm!r}"
    if len({(d.memory_bytes, d.speed) for d in cluster.devices}) == 1:
        each = f"memory_bytes={first.memory_bytes}, kind={first.kind!r}, speed={first.speed!r}"
        return f"bl.Cluster.uniform({cluster.n}, {each}, {link})"
    return f"bl.Cluster([{', '.join(f'bl.{device!r}' for device in cluster.devices)}], {link})"


def transfers_from(arguments: argparse.Namespace, graph: OpGraph | None = None) -> tuple[str, Link, str]:
    """Returns device kind, link and communication mode.

    Raises:
        UnknownNameError: a kind that is neither in the hardware table nor one that `graph` has costs or lists for.
        InvalidInput: a link by name and by numbers.
    """
    kind = _default_kind(arguments, graph) if arguments.kind is None else kind_named(arguments.kind)
    kinds_of_graph = (
        () if graph is None else (*graph.duration_by_kind, *(name for names in graph.allowed_sets for name in names))
    )
    if kind not in (*FAMILIES, *HARDWARE, *kinds_of_graph):
        raise UnknownNameError.of("device kind", kind, [*FAMILIES, *HARDWARE, *kinds_of_graph])
    numbers = {"--link-latency": arguments.link_latency, "--link-us-per-byte": arguments.link_us_per_byte}
    option = next((option for option, text in numbers.items() if text is not None), None)
    if arguments.link is not None and option is not None:
        raise InvalidInput(
            f"--link is {in_short(arguments.link)} and {option} is given too; give the name or the numbers"
        )
    link = default_link(kind) if arguments.link is None else named_link(arguments.link, kind)
    latency, us_per_byte = (
        value if text is None else number(text, option)
        for value, (option, text) in zip((link.latency_us, link.us_per_byte), numbers.items(), strict=True)
    )
    return kind, Link(latency, us_per_byte), "sequential" if arguments.comm is None else arguments.comm


def _default_kind(arguments: argparse.Namespace, graph: OpGraph | None) -> str:
    """Returns the one kind of hardware that --hardware names or `graph` was estimated for, else "gpu"."""
    hardware_name = getattr(arguments, "hardware", None)
    if hardware_name is None:
        hardware = set() if graph is None else set(estimated_hardware(graph).values())
        hardware_name = hardware.pop() if len(hardware) == 1 else None
    return "gpu" if hardware_name is None else known_kind(hardware_name) or "gpu"


def memory_of(kind: str) -> int:
    """Returns the bytes of a device without --memory: those of named hardware, else 8 GB."""
    return default_memory(kind) if known_kind(kind) else parse_bytes("8GB")


def _per_device(option: str, values: list[Any], count: int) -> list[Any]:
    if len(values) not in (1, count):
        raise InvalidInput(f"{option} has {len(values)} values for {count} devices; give one, or one per device")
    return values * count if len(values) == 1 else values


LARGEST = 2**31 - 1
"""Largest count or seed, which every solver and runtime can represent."""


def add_pipeline(parser: argparse.ArgumentParser, batch_size: bool = True) -> None:
    """Adds the options of micro-batches. `batch_size` is False if the command already has that option."""
    parser.add_argument(
        "--micro-batches",
        metavar="M",
        help="number of micro-batches of a step, each one run of the graph (1: the batch is not divided)",
    )
    parser.add_argument(
        "--schedule", metavar="NAME", help="order in which devices run micro-batches: gpipe, 1f1b, zb-h1, zb-auto, ..."
    )
    if batch_size:
        parser.add_argument("--batch-size", metavar="N", help="samples of a whole step; adds samples per second")


def pipeline_from(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns `micro_batches` and `schedule`, if given."""
    from ..simulator.schedules import make_rule

    pipeline: dict[str, Any] = {}
    if arguments.micro_batches is not None:
        pipeline["micro_batches"] = whole_number(arguments.micro_batches, "--micro-batches", 1)
    if arguments.schedule is not None:
        pipeline["schedule"] = make_rule(arguments.schedule).name
    return pipeline


def batch_size_from(arguments: argparse.Namespace, micro_batches: int = 1) -> int | None:
    """Returns --batch-size, if given. Raises `InvalidInput` unless so many micro-batches divide it."""
    from ..passes.unroll import micro_batch_size

    if arguments.batch_size is None:
        return None
    samples = whole_number(arguments.batch_size, "--batch-size", 1)
    micro_batch_size(samples, micro_batches)
    return samples


def whole_number(text: str, option: str, lowest: int, allowed: str = "a whole number") -> int:
    """Parses a whole number of at least `lowest`. `allowed` says in errors what the option takes."""
    try:
        number = int(text)
    except ValueError:
        raise InvalidInput(f"{option} is {text!r:.60}; it must be {allowed}") from None
    if number < lowest:
        raise InvalidInput(f"{option} is {text:.60}; it must be at least {lowest}")
    if number > LARGEST:
        raise InvalidInput(f"{option} is {text:.60}; it must be at most {LARGEST}")
    return number


def whole_numbers(text: str, option: str) -> list[int]:
    """Parses distinct whole numbers of at least 1, separated by commas."""
    allowed = "a whole number or a list such as 1,2,4"
    return [whole_number(word, option, 1, allowed) for word in distinct(text, option)]


def number(text: str, option: str, lowest: float = 0.0) -> float:
    """Parses a number from `lowest` to the largest one of a link or device."""
    value = _float(text, option)
    if not lowest <= value <= MOST_US:
        raise InvalidInput(f"{option} is {text:.60}; it must be a number from {lowest:g} to {MOST_US:g}")
    return value


def seconds(text: str, option: str, *, above_zero: bool = False) -> float:
    """Parses a finite number of seconds of at least 0, or above 0."""
    value = _float(text, option)
    if not 0 <= value < math.inf or (above_zero and value == 0):
        least = "above 0" if above_zero else "of at least 0"
        raise InvalidInput(f"{option} is {text:.60}; it must be a number of seconds {least}, and finite")
    return value


def _float(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidInput(f"{option} is {text!r:.60}; it must be a number") from None


def add_optimize(parser: argparse.ArgumentParser, default: bool | None) -> None:
    """Adds --optimize / --no-optimize and --passes. With the default None, the command decides if neither is given."""
    parser.add_argument(
        "--optimize",
        action=argparse.BooleanOptionalAction,
        default=default,
        help="place groups of ops instead of single ops",
    )
    parser.add_argument(
        "--passes",
        default="colocation,coplacement,fusion",
        metavar="NAME[,NAME...]",
        help="passes that make the groups of --optimize (%(default)s)",
    )


def passes_from(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Returns the chosen passes; none with --no-optimize."""
    return tuple(names(arguments.passes, "--passes")) if arguments.optimize else ()


def add_parameters(parser: argparse._ActionsContainer, owner: str) -> None:
    """Adds -p KEY=VALUE, which may be repeated."""
    parser.add_argument(
        "-p",
        "--param",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=f"a parameter of the {owner}; repeatable",
    )


def parameters(pairs: Sequence[str], exact: bool = False) -> dict[str, Any]:
    """Returns the parameters that `KEY=VALUE` texts name; `exact` names keep their hyphens.

    `["threshold=0.2", "solver=HIGHS"]` -> `{"threshold": 0.2, "solver": "HIGHS"}`.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise InvalidInput(f"parameter {pair!r} is not of the form KEY=VALUE")
        name = key if exact else key.replace("-", "_")
        if name in values:
            raise InvalidInput(f"parameter {key} is given more than once")
        try:
            values[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # all of which odd text can bring
            values[name] = text
    return values


def names(text: str, option: str) -> list[str]:
    """Returns the names in a list: `"a,b"` -> `["a", "b"]`."""
    stripped_names = [name.strip() for name in text.split(",") if name.strip()]
    if not stripped_names:
        raise InvalidInput(f"{option} is {text!r}; name at least one")
    return stripped_names


def distinct(text: str, option: str) -> list[str]:
    """Parses a list of names and removes duplicates.

    >>> distinct("m-etf,single,m-etf", "--placers")
    ['m-etf', 'single']
    """
    return list(dict.fromkeys(names(text, option)))


def with_time_limit(placer: str, text: str | None, params: dict[str, object]) -> dict[str, object]:
    """Returns `params` with the seconds of --time-limit, if given. Raises `InvalidInput` for a placer without a time limit."""
    from ..placers.registry import placer_class

    if text is None:
        return params
    if "time_limit" not in placer_class(placer).__dataclass_fields__:
        raise InvalidInput(f"--time-limit is {text}; placer {placer!r} ends by itself and has no limit")
    if "time_limit" in params:
        raise InvalidInput("parameter time_limit is given more than once: by --time-limit and by -p")
    return {"time_limit": seconds(text, "--time-limit"), **params}


def add_time_limit(parser: argparse.ArgumentParser) -> None:
    """Adds --time-limit."""
    parser.add_argument(
        "--time-limit", metavar="S", help="seconds, for placers that go on improving (their own default)"
    )


def with_seed(placer: str, seed: int | None, params: dict[str, object]) -> dict[str, object]:
    """Returns `params` with `seed`, if this placer has one."""
    from ..placers.registry import placer_class

    fields = placer_class(placer).__dataclass_fields__
    return {"seed": seed, **params} if seed is not None and "seed" in fields else params


def graph_from(path: str) -> OpGraph:
    """Returns the graph in a file. Raises `FormatError`, and `InvalidInput` for the name of a training step."""
    from ..graph import load_graph
    from ..models.registry import model_names

    names_step = path in model_names() or path.startswith("hf:") or ".py:" in path
    if names_step and not os.path.exists(path):
        raise InvalidInput(
            f"{path} names a training step, not a graph file: write one with 'baechi-lab profile {path} -o FILE.json', "
            "and give its name here"
        )
    return load_graph(path)


def check_output(path: str | None, suffixes: tuple[str, ...]) -> None:
    """Raises `FormatError` for a wrong output name before the work starts."""
    if path is not None and not path.endswith(suffixes):
        raise FormatError(f"{path or repr(path)}: the name must end in {' or '.join(suffixes)}")


def check_apart(inputs: Sequence[str | None], outputs: Sequence[str | None]) -> None:
    """Raises `InvalidInput` if an output would replace an input or another output."""
    used = {os.path.realpath(path): path for path in inputs if path and "\0" not in path}
    for path in outputs:
        if path is None or "\0" in path:
            continue
        real_path = os.path.realpath(path)
        if real_path in used:
            raise InvalidInput(
                f"{path} would replace {used[real_path]}, which this command reads or writes; name another file"
            )
        used[real_path] = path


def one_of(value: str, option: str, choices: Sequence[str]) -> str:
    """Returns `value` if it is one of `choices`, else raises `UnknownNameError`."""
    if value not in choices:
        raise UnknownNameError.of(f"value of {option}:", value, choices)
    return value
