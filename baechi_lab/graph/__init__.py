"""Records, file formats and generators that all stages share; this package imports no stage."""

from .cluster import COMMUNICATION_MODES, Cluster
from .costs import allowed_devices, durations
from .device import Device, device_of
from .formats.chrome_trace import write_chrome_trace
from .formats.files import load_cluster, load_graph, save_cluster, save_graph
from .formats.networkx_bridge import from_networkx, to_networkx
from .formats.timeline_text import timeline_text
from .formats.traces.loading import load_trace
from .formats.traces.recording import Recording
from .hardware import HOST, Hardware
from .link import Link
from .opgraph import CONTROL_BYTES, OpGraph
from .placement import Placement
from .step import NativeRun, Run, Step, TensorSpec
from .timeline import MEMORY_CATEGORIES, MemoryLog, Timeline, Transfers, Violation

__all__ = [
    "COMMUNICATION_MODES",
    "CONTROL_BYTES",
    "HOST",
    "MEMORY_CATEGORIES",
    "Cluster",
    "Device",
    "Link",
    "MemoryLog",
    "NativeRun",
    "OpGraph",
    "Placement",
    "Recording",
    "Run",
    "Step",
    "TensorSpec",
    "Timeline",
    "Transfers",
    "Violation",
    "allowed_devices",
    "durations",
    "load_cluster",
    "load_graph",
    "load_trace",
    "save_cluster",
    "save_graph",
]

# A format knows the record that it writes or reads, and no record knows a format; a device knows its hardware, and the
# table of hardware no device. These methods are set from outside.
for _record, _method, _function in (
    (OpGraph, "to_networkx", to_networkx),
    (OpGraph, "from_networkx", staticmethod(from_networkx)),
    (Timeline, "to_chrome_trace", write_chrome_trace),
    (Timeline, "to_text", timeline_text),
    (Hardware, "device", device_of),
):
    setattr(_record, _method, _function)
