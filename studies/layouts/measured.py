"""Measured training steps under layouts: what was trained, how, on what, and what it took."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from baechi_lab.graph import Cluster, Link
from baechi_lab.graph.collectives import Collectives
from baechi_lab.graph.layout import Layout
from baechi_lab.graph.link_presets import RDMA_US
from baechi_lab.parallel.kernel_times import EFFICIENCIES, Efficiency
from baechi_lab.parallel.layout_stages import StageCosts, StepOptions
from baechi_lab.parallel.layout_step import LayoutStep, make_layout_step
from baechi_lab.parallel.rank_ops import HALF, Storage
from baechi_lab.parallel.transformer import Transformer
from studies.csv_records import read_rows

DATA = Path(__file__).parents[1] / "data"
VTRAIN = Path(__file__).parents[2] / "data" / "vtrain" / "a100_single_node_even.csv"


@cache
def machines(devices: int, per_machine: int, kind: str, network: float) -> Cluster:
    """Machines of `per_machine` devices with NVLink; `network` is the specified bytes/s per device between machines."""
    between = Link.from_bandwidth(network / 1e6, RDMA_US)
    return Cluster.machines(devices, per_machine, kind=kind, network=between)


@dataclass(frozen=True, eq=False)
class MeasuredStep:
    """One measured row. `seconds` or `peak_bytes` is None where it was not measured; `out_of_memory` where the step failed."""

    source: str
    model: Transformer
    layout: Layout
    cluster: Cluster
    global_batch: int
    sequence_length: int
    options: StepOptions
    seconds: float | None = None
    peak_bytes: float | None = None
    out_of_memory: bool = False

    @property
    def constants(self) -> str:
        """Name of the hardware whose constants the devices have."""
        return self.cluster.devices[0].kind.removesuffix("-40gb")

    def step(self, efficiency: Efficiency | None = None) -> LayoutStep:
        """The step to simulate, with the package's constants or with others."""
        options = replace(self.options, efficiency=efficiency)
        reached_efficiencies = efficiency or EFFICIENCIES[self.constants]
        collectives = Collectives(
            self.cluster, (), reached_efficiencies.collective_share, reached_efficiencies.network_share
        )
        costs = StageCosts(self.model, self.cluster, self.sequence_length, options, collectives)
        return make_layout_step(costs, self.layout, self.global_batch)

    def predicted_seconds(self, efficiency: Efficiency | None = None) -> float:
        """Simulated seconds of the step."""
        return self.step(efficiency).makespan_and_peaks[0] / 1e6


def vtrain() -> list[MeasuredStep]:
    """Megatron-DeepSpeed on one machine of eight A100: GPT in fp16, eager attention, which is computed again.

    The source says that activations are checkpointed, not which. If whole blocks were, the products of the largest ones would
    reach all of the A100's peak; if attention is, they reach what they reach in the other sources. The end of a step takes as
    long on eight copies as on two, and less than an all-reduce of its gradients over eight devices, so gradients are reduced
    during the backward pass.
    """
    options = StepOptions(Storage(flash_attention=False, gradient_bytes=2))
    steps = []
    for row in read_rows(VTRAIN):
        value = lambda key: int(row[key])  # noqa: E731, B023
        model = Transformer(
            hidden=value("hidden size"),
            layers=value("# layers"),
            heads=value("attention heads"),
            vocabulary=50257,
            positions=value("sequence length"),
            dropout=True,
            name="gpt",
        )
        layout = Layout(
            tp=value("tensor parallelism"),
            dp=value("data parallelism"),
            pp=value("pipeline parallelism"),
            micro_batch=value("micro batch"),
            recompute="selective",
        )
        cluster = machines(layout.devices, 8, "a100", 25e9)
        seconds = float(row["iteration time (ms)"]) / 1e3
        steps.append(
            MeasuredStep(
                "vtrain", model, layout, cluster, value("global batch"), value("sequence length"), options, seconds
            )
        )
    return steps


OMNI_PATH = 6.25e9 * 0.25
"""Bytes per second of half a link of Omni-Path per device; what is sent is copied through the memory of the host."""
BLOOM_RESERVE = 0.17
"""Share of the tensors' bytes that the allocator reserves beside them."""
BLOOM_OVERHEAD = 3_500_000_000
"""Bytes of contexts and buffers that `nvidia-smi` counts beside PyTorch's tensors."""


def bloom() -> list[MeasuredStep]:
    """Megatron-DeepSpeed on 384 A100, ZeRO-1, full recomputation; half an Omni-Path link per device."""
    steps = []
    for row in read_rows(DATA / "bloom_a100.csv"):
        value = lambda key: int(row[key])  # noqa: E731, B023
        full = row["precision"] == "bf16"  # gradients are added up in float32, beside those in half precision
        precision = Storage(
            flash_attention=False, gradient_bytes=4 if full else 2, extra_gradient_bytes=2 if full else 0
        )
        options = StepOptions(precision, overlap=False, overhead_bytes=BLOOM_OVERHEAD, reserve_share=BLOOM_RESERVE)
        model = Transformer(
            hidden=value("hidden"),
            layers=value("layers"),
            heads=value("heads"),
            vocabulary=250880,
            positions=2048,
            name="bloom",
        )
        layout = Layout(
            tp=value("tp"), pp=value("pp"), dp=value("dp"), zero=1, micro_batch=value("micro_batch"), recompute="full"
        )
        memory = row["memory_GB"]
        steps.append(
            MeasuredStep(
                "bloom",
                model,
                layout,
                machines(value("gpus"), 8, "a100", OMNI_PATH),
                value("global_batch"),
                2048,
                options,
                float(row["seconds"]) if row["seconds"] else None,
                float(memory) * 1e9 if memory not in ("", "OOM") else None,
                memory == "OOM",
            )
        )
    return steps


_MPT = {
    "125m": (768, 12, 12),
    "350m": (1024, 16, 24),
    "760m": (1536, 12, 24),
    "1b": (2048, 16, 24),
    "3b": (2560, 20, 32),
    "7b": (4096, 32, 32),
    "13b": (5120, 40, 40),
    "30b": (7168, 56, 48),
    "70b": (8192, 64, 80),
}
"""Width, heads and layers of the MPT models."""


def mpt() -> list[MeasuredStep]:
    """llm-foundry under FSDP, with gradients reduced in bf16; 200 (A100) or 400 Gbit/s (H100) per device between machines."""
    steps = []
    for row in read_rows(DATA / "mpt_fsdp.csv"):
        value = lambda key: int(row[key])  # noqa: E731, B023
        hidden, heads, layers = _MPT[row["model"]]
        model = Transformer(
            hidden=hidden, layers=layers, heads=heads, vocabulary=50368, bias=False, name=f"mpt-{row['model']}"
        )
        zero = 3 if row["sharding"] == "FULL_SHARD" else 2
        layout = Layout(
            dp=value("gpus"),
            zero=zero,
            micro_batch=value("micro_batch"),
            recompute="full" if row["checkpointing"] == "True" else "none",
        )
        kind = {"h100_80gb": "h100", "a100_80gb": "a100", "a100_40gb": "a100-40gb"}[row["gpu"]]
        network = 50e9 if kind == "h100" else 25e9
        products = "fp8" if "fp8" in row["precision"] else "fp16"
        seconds = value("global_batch") * value("sequence") / float(row["tokens_per_s"])
        steps.append(
            MeasuredStep(
                "mpt",
                model,
                layout,
                machines(value("gpus"), 8, kind, network),
                value("global_batch"),
                value("sequence"),
                StepOptions(Storage(products=products, reduced_bytes=HALF)),
                seconds,
            )
        )
    return steps


LLAMA = Transformer(
    hidden=8192,
    layers=80,
    heads=64,
    kv_heads=8,
    head_size=128,
    feed_forward=28672,
    vocabulary=128256,
    gated=True,
    bias=False,
    tied=False,
    name="llama3-70b",
)
DEEPSEEK = Transformer(
    hidden=7168,
    layers=61,
    heads=128,
    head_size=128,
    feed_forward=18432,
    vocabulary=129280,
    gated=True,
    bias=False,
    tied=False,
    experts=256,
    experts_per_token=8,
    expert_feed_forward=2048,
    shared_feed_forward=2048,
    dense_layers=3,
    query_rank=1536,
    key_rank=512,
    rope_size=64,
    value_size=128,
    name="deepseek-v3",
)


B200_RESERVE = 0.022
"""Share of the parameters' and activations' bytes that the peak of allocated memory has beside them."""


def b200() -> list[MeasuredStep]:
    """Megatron-LM on eight B200: Llama 3 70B and DeepSeek V3 with fewer layers, of which the first of the latter has no
    experts: with that number, memory of both layouts of it is explained.
    """
    steps = []
    options = StepOptions(Storage(fused_loss=True), overlap=False, overlap_tensor=True, reserve_share=B200_RESERVE)
    for row in read_rows(DATA / "b200.csv"):
        value = lambda key: int(row[key])  # noqa: E731, B023
        model = LLAMA if row["model"].startswith("llama") else replace(DEEPSEEK, dense_layers=1)
        layout = Layout(
            tp=value("tp"),
            cp=value("cp"),
            pp=value("pp"),
            dp=value("dp"),
            ep=value("ep"),
            zero=1,
            sequence_parallel=value("tp") > 1,
        )
        steps.append(
            MeasuredStep(
                "b200",
                replace(model, layers=value("layers")),
                layout,
                machines(8, 8, "b200", 50e9),
                value("micro_batches") * layout.dp,
                value("sequence"),
                options,
                float(row["step_ms"]) / 1e3,
                float(row["allocated_GiB"]) * 2**30,
            )
        )
    return steps


SAILOR_OVERHEAD = 4_300_000_000
"""Bytes that are there before the model, from the rows with one micro-batch."""
SAILOR_RESERVE = 0.08
"""Share of the tensors' bytes that the allocator reserves beside them."""


def sailor() -> list[MeasuredStep]:
    """Megatron-DeepSpeed on GH200 machines of four, tensor parallelism 4; 200 Gbit/s per device between machines.

    With one sequence, a rank of GPT-Neo has five heads, and its softmax is no single kernel. It keeps float32 scores, but
    these steps take no longer per sequence than those of four sequences, whose softmax is one: it is read as PyTorch's.
    """
    models = {
        "GPT-NEO": Transformer(
            hidden=2560, layers=32, heads=20, vocabulary=50257, positions=2048, dropout=True, name="gpt-neo-2.7b"
        ),
        "OPT-350": Transformer(
            hidden=1024, layers=24, heads=16, vocabulary=50272, positions=2050, dropout=True, name="opt-350m"
        ),
    }
    steps = []
    options = StepOptions(
        Storage(flash_attention=False, torch_softmax=True),
        overlap=False,
        overhead_bytes=SAILOR_OVERHEAD,
        reserve_share=SAILOR_RESERVE,
    )
    for row in read_rows(DATA / "sailor_gh200.csv"):
        layers = [int(count) for count in row["layers_per_stage"].split(";")]
        layers[0] -= 1  # the embedding and the output layer count as layers there
        layers[-1] -= 1
        layout = Layout(
            tp=4,
            pp=len(layers),
            dp=int(row["dp"].split(";")[0]),
            micro_batch=int(row["micro_batch"]),
            stage_layers=tuple(layers),
        )
        steps.append(
            MeasuredStep(
                "sailor",
                models[row["model"]],
                layout,
                machines(layout.devices, 4, "gh200", 25e9),
                int(row["global_batch"]),
                2048,
                options,
                float(row["seconds"]),
                float(row["max_bytes"]),
            )
        )
    return steps


def megatron() -> list[MeasuredStep]:
    """Megatron-LM's own steps on DGX A100 and H100, 200 and 400 Gbit/s per device between machines. Nothing is fitted to them.

    Published are seconds, or FLOP/s by a formula that counts all scores of attention: 96 (with recomputation) or 72 FLOPs per
    weight of a block and token, the same share of scores and of the output layer. Micro-batches of 2021 and 2024 are not
    published; those in the file were predicted to be the fastest of those that fit. Interleaved schedules have two parts per
    device here; theirs had up to three. The steps on H100 ran with `--overlap-grad-reduce`, `--overlap-param-gather` and
    `--tp-comm-overlap`.
    """
    return [_megatron_step(row) for row in read_rows(DATA / "megatron.csv")]


def _megatron_step(row: dict[str, str]) -> MeasuredStep:
    value = lambda key: int(row[key])  # noqa: E731
    hidden, layers, sequence, vocabulary = value("hidden"), value("layers"), value("sequence"), value("vocabulary")
    h100 = row["hardware"] == "h100"
    model = Transformer(
        hidden=hidden,
        layers=layers,
        heads=value("heads"),
        vocabulary=vocabulary,
        positions=sequence,
        dropout=not h100,
        name="gpt",
    )
    layout = Layout(
        tp=value("tp"),
        pp=value("pp"),
        dp=value("gpus") // (value("tp") * value("pp")),
        zero=1 if h100 else 0,
        micro_batch=value("micro_batch"),
        recompute=row["recompute"],
        sequence_parallel=row["sequence_parallel"] == "True",
        schedule="interleaved-1f1b" if row["interleaved"] == "True" and value("pp") > 1 else "1f1b",
    )
    if row["seconds"]:
        seconds = float(row["seconds"])
    else:
        flops = 96.0 if row["recompute"] == "full" else 72.0
        flops *= value("global_batch") * sequence * layers * hidden**2
        passes_of_output = 16 if row["recompute"] == "full" else 12  # which is not computed again
        flops *= 1 + sequence / (6 * hidden) + vocabulary / (passes_of_output * layers * hidden)
        seconds = flops / (float(row["teraflops"]) * 1e12 * value("gpus"))
    storage = Storage(flash_attention=h100, fused_loss=h100, gradient_bytes=4 if h100 else 2)
    return MeasuredStep(
        "megatron",
        model,
        layout,
        machines(value("gpus"), 8, row["hardware"], 50e9 if h100 else 25e9),
        value("global_batch"),
        sequence,
        StepOptions(
            storage,
            overlap=h100,
            overlap_gather=h100,
            overlap_tensor=row["source"] != "2021",
            overlap_products=h100,
        ),
        seconds,
    )


SOURCES: dict[str, Callable[[], list[MeasuredStep]]] = {
    "vtrain": vtrain,
    "bloom": bloom,
    "mpt": mpt,
    "b200": b200,
    "sailor": sailor,
    "megatron": megatron,
}
"""Name of a source -> its rows."""
