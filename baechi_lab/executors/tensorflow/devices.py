"""Map the device indices of a placement to TensorFlow devices.

Names: `gpu:1` is a whole attached GPU, `gpu:0/2` the third memory-limited part of the first one, `cpu:3` a logical
CPU device of the process, `/job:worker/task:1/device:CPU:0` a device of a cluster. Logical CPU devices share the
machine's cores and memory: TensorFlow enforces no limit on them.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...checks import check_whole, is_list
from ...errors import ExecutionError, InvalidInput, in_short
from ...graph import Cluster, Device
from ...graph.formats.reading import absolute
from ...graph.link import PCIE, Link
from ...graph.units import format_bytes, parse_bytes
from ...workers.executors import cores
from ...workers.messages import Message
from .secret import check_secret
from .tunnel import go_through

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorflow.core.protobuf.config_pb2 import ConfigProto

LOCAL = "/job:localhost/replica:0/task:0/device:"
_NAME = re.compile(
    r"(?:/job:localhost(?:/replica:0)?/task:0)?/?(?:device:)?(?P<kind>cpu|gpu):(?P<index>\d+)(?:/(?P<part>\d+))?", re.I
)
_TASK = re.compile(
    r"/job:worker(?:/replica:0)?/task:(?P<task>\d+)(?:/device)?[:/](?P<kind>cpu|gpu):(?P<index>\d+)", re.I
)


@dataclass
class Selection:
    """TensorFlow devices by placement index, and the session settings that they need.

    `gpu_parts`: per visible GPU, the memory limits in bytes of its parts (empty: the whole card).
    """

    devices: list[str]
    cpus: int = 1
    gpu_parts: dict[int, list[int]] = field(default_factory=dict)
    soft: bool = False
    threads: int | None = None
    workers: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)

    @property
    def target(self) -> str:
        """The session's target: the first worker's master, or this process."""
        return f"grpc://{self.workers[0]}" if self.workers else ""

    def apply(self, config: ConfigProto) -> None:
        if self.workers:
            return
        if not self.gpu_parts:
            config.device_count["GPU"] = 0
            return
        config.gpu_options.visible_device_list = ",".join(str(g) for g in sorted(self.gpu_parts))
        config.intra_op_parallelism_threads = 0
        if any(self.gpu_parts.values()):
            for gpu in sorted(self.gpu_parts):
                virtual = config.gpu_options.experimental.virtual_devices.add()
                virtual.memory_limit_mb.extend([b / (1 << 20) for b in self.gpu_parts[gpu]])


# -- in the worker ---------------------------------------------------------------------------------------


def gpu_memory() -> list[int]:
    """Returns the total bytes of every GPU that TensorFlow and CUDA report; empty on a machine without GPUs."""
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        return []
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count, size, device = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_int()
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    sizes = []
    for index in range(count.value):
        cuda.cuDeviceGet(ctypes.byref(device), index)
        cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device)
        sizes.append(int(size.value))
    return sizes


def cpu_memory() -> int:
    """Returns the bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def select(names: Sequence[tuple[str, int]] | None, options: Mapping[str, Any], device_count: int) -> Selection:
    """Selects the devices for a placement over `device_count` indices.

    `names` has (device name, memory bytes) of a cluster. None means the attached devices: GPUs if there are any (split if there
    are too few), logical CPU devices otherwise. `options`: `virtual`, `memory_limit`, `kind`, `threads`, `workers`, `secret`.
    """
    if options.get("workers"):
        return _select_tasks(names, options, device_count)
    gpus = gpu_memory() if options.get("kind") != "cpu" else []
    if options.get("kind") == "gpu" and not gpus:
        raise ExecutionError("kind is 'gpu' but this machine has no attached GPU; logical CPU devices are kind='cpu'")
    if names is None:
        attached_devices = attached_names(gpus, device_count, options.get("virtual"), options.get("memory_limit"))
        selection = _select_local(attached_devices, gpus)
        if attached_devices and "/" in attached_devices[0][0]:
            selection.notes.append(f"{len(gpus)} GPU(s) split into {len(attached_devices)} parts")
    else:
        selection = _select_local(list(names), gpus)
    selection.threads = options.get("threads")
    return selection


def attached_names(
    gpus: Sequence[int], device_count: int | None, virtual: int | None, limit: int | None
) -> list[tuple[str, int]]:
    """Returns (name, memory bytes) of the attached devices: whole GPUs, parts of GPUs, or logical CPU devices."""
    if not gpus:
        count = virtual or device_count or cores()
        return [(f"cpu:{i}", limit or cpu_memory() // count) for i in range(count)]
    count = virtual or device_count or len(gpus)
    if limit is None and virtual is None and count <= len(gpus):
        return [(f"gpu:{i}", gpus[i]) for i in range(count)]
    each = math.ceil(count / len(gpus))
    # CUDA and its libraries need some memory of the card.
    share = limit or int(min(gpus) * 0.9 / each)
    for gpu, total in enumerate(gpus):
        if share * min(each, count) > total:
            raise ExecutionError(
                f"{each} parts of {format_bytes(share)} need {format_bytes(share * each)}; "
                f"GPU {gpu} has {format_bytes(total)}"
            )
    return [(f"gpu:{i // each}/{i % each}", share) for i in range(count)]


def _select_local(names: Sequence[tuple[str, int]], gpus: Sequence[int]) -> Selection:
    """Returns which GPUs the process needs, divided into which parts, and how many logical CPU devices."""
    matches: list[re.Match[str]] = []
    limits_of_gpu: dict[int, dict[int, int]] = {}  # GPU -> the memory limit of each part
    for name, limit in names:
        match = _NAME.fullmatch(name)
        if match is None and _TASK.fullmatch(name):
            raise ExecutionError(
                f"device {name!r} belongs to a TensorFlow server; give the servers' addresses as workers=, "
                "or cluster=bl.LocalCluster(n)"
            )
        if match is None:
            raise ExecutionError(f"device {name!r} is no TensorFlow device; names are cpu:N, gpu:N or gpu:N/part")
        matches.append(match)
        if match["kind"].lower() == "gpu":
            if int(match["index"]) >= len(gpus):
                has = f"{len(gpus)} GPU(s)" if gpus else "no GPU; execute without a cluster to use logical CPU devices"
                raise ExecutionError(f"device {name!r} is not attached: this machine has {has}")
            limits_of_parts = limits_of_gpu.setdefault(int(match["index"]), {})
            if match["part"] is not None:
                limits_of_parts[int(match["part"])] = limit
    for gpu, limits in limits_of_gpu.items():
        if sum(limits.values()) > gpus[gpu]:
            raise ExecutionError(
                f"the parts of gpu:{gpu} have memory limits of {format_bytes(sum(limits.values()))} together; "
                f"the card has {format_bytes(gpus[gpu])}"
            )
    gpu_parts = {
        g: [limits.get(p, min(limits.values())) for p in range(max(limits, default=-1) + 1)]
        for g, limits in limits_of_gpu.items()
    }
    first, at = {}, 0
    for gpu in sorted(gpu_parts):
        first[gpu] = at
        at += max(1, len(gpu_parts[gpu]))
    devices = [
        f"{LOCAL}CPU:{m['index']}"
        if m["kind"].lower() == "cpu"
        else f"{LOCAL}GPU:{first[int(m['index'])] + int(m['part'] or 0)}"
        for m in matches
    ]
    cpus = 1 + max((int(m["index"]) for m in matches if m["kind"].lower() == "cpu"), default=0)
    return Selection(devices, cpus, gpu_parts, soft=bool(gpu_parts))


def _select_tasks(names: Sequence[tuple[str, int]] | None, options: Mapping[str, Any], device_count: int) -> Selection:
    workers = tuple(options["workers"])
    if options.get("secret"):
        go_through(options["secret"])
    device_names = [f"/job:worker/task:{i}/device:CPU:0" for i in range(len(workers))]
    if names:
        device_names = [name for name, _ in names]
    if device_count > len(device_names):
        raise ExecutionError(f"the placement uses {device_count} devices; the cluster has {len(device_names)}")
    devices, soft = [], False
    for name in device_names:
        match = _TASK.fullmatch(name)
        if match is None or int(match["task"]) >= len(workers):
            raise ExecutionError(
                f"device {name!r} is not one of the cluster's: /job:worker/task:0..{len(workers) - 1}/device:CPU:0"
            )
        kind = match["kind"].upper()
        soft = soft or kind == "GPU"
        devices.append(f"/job:worker/replica:0/task:{match['task']}/device:{kind}:{match['index']}")
    return Selection(devices, soft=soft, workers=workers)


def serve(request: Message, send: Callable[..., object]) -> None:
    """Answers the `devices` request: sends (name, memory bytes) of the attached devices."""
    options = request.header["options"]
    gpus = gpu_memory() if options.get("kind") != "cpu" else []
    if options.get("kind") == "gpu" and not gpus:
        raise ExecutionError("kind is 'gpu' but this machine has no attached GPU; logical CPU devices are kind='cpu'")
    names = attached_names(gpus, None, options.get("virtual"), options.get("memory_limit"))
    selection = _select_local(names, gpus)
    if selection.gpu_parts:
        # The bytes that TensorFlow's allocator gets on each GPU, read from a new session.
        import tensorflow as tf

        from .session import session_config

        config = session_config(selection.cpus)
        selection.apply(config)
        with tf.compat.v1.Session(graph=tf.Graph(), config=config) as session:
            limits = {d.name: int(d.memory_limit_bytes) for d in session.list_devices()}
        missing = [d for d in selection.devices if d not in limits]
        if missing:
            raise ExecutionError(
                f"CUDA shows a GPU but TensorFlow has no {missing[0]!r}; its CUDA libraries may be missing"
            )
        names = [(name, limits[device]) for (name, _), device in zip(names, selection.devices, strict=True)]
    send("devices", {"devices": [list(entry) for entry in names]})


# -- in the caller ---------------------------------------------------------------------------------------


def device_options(
    virtual: int | None = None,
    memory_limit: int | str | None = None,
    kind: str = "auto",
    threads: int | None = None,
    workers: Sequence[str] = (),
    secret: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Checks the options of `execute` and `Cluster.from_tensorflow`. Returns them ready to be sent."""
    for name, value in (("virtual", virtual), ("threads", threads)):
        if value is not None:
            check_whole(name, value, also=", or None")
    kind = kind.lower() if isinstance(kind, str) else kind
    if not isinstance(kind, str) or kind not in ("auto", "cpu", "gpu"):
        raise InvalidInput(f"kind is {in_short(kind)}; it must be 'auto', 'cpu' or 'gpu'")
    addresses = list(workers) if is_list(workers) and not isinstance(workers, str) else [None]
    if not all(isinstance(address, str) for address in addresses):
        raise InvalidInput(
            f"workers is {in_short(workers)}; it must be a list of addresses, for example ['10.0.0.2:7077'] (a bl.LocalCluster "
            "is given as cluster=)"
        )
    limit = None if memory_limit is None else parse_bytes(memory_limit, "memory_limit")
    if limit is not None and limit <= 0:
        raise InvalidInput(f"memory_limit is {memory_limit!r}; it must be above 0")
    if secret is not None:
        secret = absolute(secret, "secret")
        if not addresses:
            raise InvalidInput("secret is given without workers; it is what the workers of other machines ask for")
        check_secret(secret)
    return {
        "virtual": virtual,
        "memory_limit": limit,
        "kind": kind,
        "threads": threads,
        "workers": addresses,
        "secret": secret,
    }


def attached_cluster(
    virtual: int | None = None,
    memory_limit: int | str | None = None,
    kind: str = "auto",
    link: Link = PCIE,
    comm: str = "sequential",
    timeout: float = 120.0,
) -> Cluster:
    """Returns the devices that TensorFlow has on this machine, queried in a separate process.

    `virtual=4, memory_limit="2400MB"` splits each GPU into memory-limited parts; without a GPU `virtual` is the
    number of logical CPU devices (default: one per core), which share the machine's memory evenly. `link` is an
    assumption (PCIe 3.0); `bl.measure_link` measures it.

    Raises `ExecutionError` if limits exceed the card or TensorFlow cannot start, `InvalidInput` for bad values.

    >>> attached_cluster(virtual=2, kind="cpu").names  # doctest: +SKIP
    ('cpu:0', 'cpu:1')
    """
    from ...workers.client import ask

    options = device_options(virtual, memory_limit, kind)
    answer = ask(Message("devices", {"options": options}), "devices", timeout)
    devices = [Device(name, name.split(":")[0], memory) for name, memory in answer.header["devices"]]
    return Cluster(tuple(devices), link, comm)
