"""The shared vocabulary: records, file formats, generators. It knows no stage."""

from .cluster import COMMUNICATION_MODES, HOST, Cluster, Device, Link
from .costs import allowed_devices, durations
from .formats.files import load_cluster, load_graph, save_cluster, save_graph
from .formats.traces.loading import load_trace
from .formats.traces.recording import Recording
from .opgraph import CONTROL_BYTES, OpGraph
from .placement import Placement
from .step import NativeRun, Run, Step, TensorSpec
from .timeline import MEMORY_CATEGORIES, MemoryLog, Timeline, Transfers, Violation

__all__ = [
    "COMMUNICATION_MODES", "CONTROL_BYTES", "HOST", "MEMORY_CATEGORIES", "Cluster", "Device", "Link", "MemoryLog",
    "NativeRun", "OpGraph", "Placement", "Recording", "Run", "Step", "TensorSpec", "Timeline", "Transfers", "Violation",
    "allowed_devices", "durations", "load_cluster", "load_graph", "load_trace", "save_cluster", "save_graph",
]  # fmt: skip
