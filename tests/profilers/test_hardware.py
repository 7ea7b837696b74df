"""The table of devices and links: names in any case, peaks in order, clusters made from it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fewer import slow

import baechi_lab as bl
from baechi_lab.errors import InvalidInput, UnknownNameError
from baechi_lab.exporters.plans.records import Request
from baechi_lab.graph.costs import allowed_devices, durations
from baechi_lab.graph.hardware import CONVERTED_SHARE, HARDWARE, PRECISIONS, Hardware, by_kind, known_kind
from baechi_lab.graph.link_presets import LINKS, default_link, named_link
from baechi_lab.profilers.kernel_model import is_halved, kernel_us
from baechi_lab.profilers.work import Kernel, Product

NAMES = (
    "k40 k80 p4 gtx1080ti p100 t4 rtx2080 rtx2080ti titan-rtx quadro-rtx-6000 quadro-rtx-8000 rtx4090 rtx4070 "
    "rtx4070ti rtx4080 rtx5090 rtx5070ti rtx5080 rtx-pro-6000 v100 v100-pcie-16gb v100-32gb v100-pcie-32gb a10 a10g "
    "a30 a40 rtx-a6000 rtx-a5000 rtx3080 rtx3060 rtx3070 rtx3080ti rtx3090 rtx3090ti a100-40gb a100 a100-pcie-40gb "
    "a100-80gb-pcie l4 l40 l40s rtx-6000-ada h100 h100-pcie h100-nvl h20 gh200 h200 h200-nvl b200 gb200 mi100 mi210 "
    "mi250 mi250x mi300x mi325x mi350x mi355x tpu-v5e cpu-core cpu-epyc-9654 cpu-xeon-8480"
)


@pytest.mark.parametrize("name", NAMES.split())
def test_every_device_is_complete(name):
    hardware = Hardware.named(name)
    hardware.validate()
    assert hardware is HARDWARE[name] and len(hardware.source) > 40
    assert hardware.device().memory_bytes == hardware.memory_bytes
    full, tf32, half, *_ = (hardware.product_flops(p) for p in PRECISIONS)
    assert full <= tf32 <= half, "narrower products are no slower"
    assert set(hardware.links) <= set(LINKS)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("A100", "a100"),
        ("NVIDIA H100", "h100"),
        ("RTX_4090", "rtx4090"),
        ("rtx 5090", "rtx5090"),
        ("A100-80GB", "a100"),
        ("a100 40GB", "a100-40gb"),
        ("TPU v5e", "tpu-v5e"),
        ("MI300X", "mi300x"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("A6000", "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx2080ti"),
        ("Tesla V100-SXM2-32GB", "v100-32gb"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("H100-SXM", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("A100-SXM4", "a100"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("Tesla V100-PCIE-16GB", "v100-pcie-16gb"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA GeForce RTX 4070 Ti", "rtx4070ti"),
        ("AMD Instinct MI250X", "mi250x"),
    ],
)
def test_names_in_any_case(text, name):
    assert Hardware.named(text).name == name
    assert bl.Cluster.uniform(2, kind=text).devices[1] == bl.Device(f"{name}:1", name, HARDWARE[name].memory_bytes)


@pytest.mark.parametrize(("text", "near"), [("h10", "h100"), ("rtx409", "rtx4090"), ("tpuv5", "tpu-v5e")])
def test_unknown_names_have_near_ones(text, near):
    with pytest.raises(UnknownNameError, match=f"unknown hardware '{text}'; did you mean '{near}'"):
        Hardware.named(text)


def test_kinds_that_are_no_hardware_stay_as_they_are():
    assert known_kind("gpu") is None and known_kind("A1000") is None
    cluster = bl.Cluster.uniform(1, kind="Mine")
    assert cluster.devices[0] == bl.Device("Mine:0", "Mine", 8 * 10**9)
    assert bl.Cluster.uniform(1, kind="A100", memory_bytes="1GB").devices[0].memory_bytes == 10**9


def test_kinds_in_any_case_are_one_kind():
    """ "CPU" was refused by `from_torch`, counted as a GPU in plans, and took the durations of the reference device."""
    assert by_kind({"GPU": "A100"}).keys() == {"gpu"} and bl.Cluster.uniform(2, kind="CPU").names == ("cpu:0", "cpu:1")
    assert [bl.Device("d", kind, 1).kind for kind in ("GPU", "Host", "my-asic", "A100")] == [
        "gpu",
        "host",
        "my-asic",
        "A100",
    ]
    graph = bl.OpGraph.from_edges([5.0, 7.0], [(0, 1, 8)]).replace(
        duration_by_kind={"cpu": [50.0, 70.0], "TPU": [1.0, 2.0]}, allowed=[-1, 0], allowed_sets=(("GPU", "CPU"),)
    )
    cluster = bl.Cluster((bl.Device("a", "CPU", 1 << 30), bl.Device("b", "tpu", 1 << 30)))
    assert durations(graph, cluster).tolist() == [[50.0, 1.0], [70.0, 2.0]]
    assert allowed_devices(graph, cluster).tolist() == [[True, True], [True, False]]


def test_products_belong_to_a_family():
    """`gpu-only` was refused on A100s, and a processor of the table counted as a GPU."""
    graph = bl.OpGraph.from_edges([5.0, 7.0], [(0, 1, 8)])
    cluster = bl.Cluster((bl.Device("host", "cpu-epyc-9654", 1 << 30), bl.Device("card", "a100", 1 << 30)))
    assert [bl.place(graph, cluster, name).device.tolist() for name in ("cpu-only", "gpu-only")] == [[0, 0], [1, 1]]
    request = Request(graph, np.array([0, 1]), cluster, None, None)
    assert request.accelerators() == {1: 0}


def test_links_by_name():
    """A ring of NCCL reaches 370 of 450 GB/s of NVLink 4: a gigabyte takes 1e9 / 370e9 s = 2703 us."""
    assert bl.Cluster.uniform(2, kind="H100", link="NVLink").link == named_link("nvlink4")
    assert named_link("nvlink", "h100").cost_us(10**9) == pytest.approx(7.26 + 1e9 / 370e9 * 1e6)
    assert named_link("pcie", "v100") == LINKS["pcie3"].link
    assert named_link("InfiniBand NDR") == named_link("infiniband") == LINKS["infiniband-ndr"].link
    assert all(len(preset.source) > 20 for preset in LINKS.values())
    assert all(preset.specified / 2 < preset.bandwidth < preset.specified for preset in LINKS.values())


@pytest.mark.parametrize(
    ("kind", "link", "memory"),
    [
        ("H100", "nvlink4", 80),
        ("a100", "nvlink3", 80),
        ("v100", "nvlink2", 16),
        ("b200", "nvlink5", 180),
        ("l4", "pcie4", 24),
    ],
)
def test_a_cluster_of_named_hardware_has_its_link_and_memory(kind, link, memory):
    """Previously H100s were joined by PCIe 3.0 through host memory."""
    cluster = bl.Cluster.uniform(2, kind=kind)
    assert cluster.link == named_link(link) == default_link(kind)
    assert cluster.memory_bytes.tolist() == [memory * 10**9] * 2
    told_otherwise = bl.Cluster.uniform(2, kind=kind, link="pcie3", memory_bytes="1GB")
    assert (told_otherwise.link, told_otherwise.memory_bytes[0]) == (LINKS["pcie3"].link, 10**9)


def test_a_cluster_of_no_named_hardware():
    for kind in ("gpu", "cpu", "fpga", "cpu-core"):
        assert bl.Cluster.uniform(2, kind=kind).link == bl.Link(134.0, 0.0001754)


def test_hardware_estimated_for_another_kind():
    """The a100 has the durations of "gpu"; the h100 has none; the processor has those of "cpu", not of the reference."""
    by_kind = {"gpu": [5.0], "cpu": [50.0]}
    info = {"estimate": {"hardware": {"gpu": "a100", "cpu": "cpu-core"}}}
    graph = bl.OpGraph.from_edges([5.0], []).replace(duration_by_kind=by_kind, info=info)
    for coarse in (graph, bl.optimize(graph, bl.Cluster.uniform(1))):
        assert durations(coarse, bl.Cluster.uniform(1, kind="a100")).tolist() == [[5.0]]
        assert durations(coarse, bl.Cluster.uniform(1, kind="cpu-core")).tolist() == [[50.0]]
        assert durations(coarse, bl.Cluster.uniform(1)).tolist() == [[5.0]]
        with pytest.raises(
            bl.CostError, match="of kind 'h100' and the graph was estimated for cpu, gpu, a100, cpu-core"
        ):
            durations(coarse, bl.Cluster.uniform(1, kind="h100"))


@pytest.mark.parametrize(
    ("link", "kind", "message"),
    [
        ("nvlink", "l4", "l4 has no nvlink; give one of pcie4"),
        ("nvlink", "gpu", "which nvlink devices of kind 'gpu' have is not known; give one of nvlink2, "),
        ("nvlnk", "a100", "unknown link 'nvlnk'; did you mean 'nvlink"),
    ],
)
def test_links_that_are_not_there(link, kind, message):
    with pytest.raises(InvalidInput, match=message):
        bl.Cluster.uniform(2, kind=kind, link=link)


def test_products_by_precision():
    """1e15 FLOPs on an H100: 67, 494.7, 989.4, 989.4, 1978.9, 1978.9 and 67 TFLOP/s, and the launch."""
    h100 = Hardware.named("h100").as_roofline()
    for precision, peak in zip(PRECISIONS, (67, 494.7, 989.4, 989.4, 1978.9, 1978.9, 67), strict=True):
        kernel = Kernel(flops=1e15, precision=precision, matrix=True)
        assert kernel_us(kernel, h100) == pytest.approx(6.7 + 1e9 / peak)


SQUARE = Kernel(2.0 * 8192**3, 6.0 * 8192**2, matrix=True, products=(Product(1, 8192, 8192, 8192),))


def test_precisions_without_matrix_units_run_on_those_of_float32():
    """A T4 multiplies in bfloat16 28 times slower than in float16 (2.3 and 65 TFLOP/s); estimates had both alike."""
    us = {
        (name, precision): kernel_us(replace(SQUARE, precision=precision), Hardware.named(name))
        for name in ("p100", "t4", "v100", "a100")
        for precision in ("fp32", "tf32", "fp16", "bf16")
    }
    for name in ("p100", "t4", "v100"):
        assert us[name, "tf32"] == us[name, "fp32"]
        assert us[name, "bf16"] == pytest.approx(us[name, "fp32"] / CONVERTED_SHARE, rel=0.1)
    assert us["p100", "fp16"] == us["p100", "fp32"], "Pascal has no matrix units"
    assert us["t4", "fp16"] < us["t4", "fp32"] / 5 and us["v100", "fp16"] < us["v100", "fp32"] / 5
    assert us["a100", "bf16"] == us["a100", "fp16"] < us["a100", "tf32"] < us["a100", "fp32"]


@pytest.mark.parametrize("name", ["rtx2080", "rtx3090", "a10g", "l40", "rtx4090", "rtx5090", "h20"])
def test_halved_matrix_units_reach_what_they_have(name):
    """They reached 0.43 to 0.74 of it, so that a GeForce RTX 5090 multiplied more slowly in TF32 than in float32."""
    board = Hardware.named(name)
    reached = SQUARE.flops / kernel_us(replace(SQUARE, precision="fp16"), board) / 1e-6
    assert 0.95 * board.half_flops < reached < board.half_flops
    assert kernel_us(replace(SQUARE, precision="tf32"), board) <= kernel_us(SQUARE, board)


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{}, {"row_alignment": 4}, {"row_alignment": 2}, {"crossed": True}])
@pytest.mark.parametrize("rows", slow([1, 8, 4096], 8))
def test_bug_narrow_products_took_longer_than_float32(rows, fields):
    """A vocabulary of 50,257 words took a GeForce RTX 3060 three times as long in TF32, and an H20 twice as long in float16."""
    product = Product(1, rows, 50_257, 4096)
    float32 = Kernel(product.flops, matrix=True, products=(product,))
    for hardware in HARDWARE.values():
        longest_us = 1.001 * kernel_us(float32, hardware)
        if hardware.generation:
            assert kernel_us(replace(float32, precision="tf32", **fields), hardware) <= longest_us, hardware.name
        if hardware.generation and not hardware.uses_float32_units("fp16"):
            assert kernel_us(replace(float32, precision="fp16", **fields), hardware) <= longest_us, hardware.name


def test_rows_of_other_lengths_are_as_fast_on_halved_units():
    """An H20 has 0.23 of the matrix units of an H100 for its float32, by FLOPs; each of its multiprocessors loads as fast."""
    product = Product(1, 78 * 64, 78 * 132 * 64, 4096)
    kernel = Kernel(product.flops, matrix=True, precision="fp16", products=(product,), row_alignment=2)
    h20, h100 = (Hardware.named(name) for name in ("h20", "h100"))
    ratio = kernel_us(kernel, h20) / kernel_us(kernel, h100)
    assert ratio == pytest.approx(h100.peak_flops / h20.peak_flops, rel=0.01)


@pytest.mark.parametrize(
    ("name", "units"), [("p100", 3584), ("v100", 5120), ("t4", 2560), ("a100", 6912), ("a10", 9216), ("h100", 16896)]
)
def test_units_are_those_of_the_data_sheet(name, units):
    hardware = Hardware.named(name)
    assert hardware.multiprocessors * hardware.float32_units == units


@pytest.mark.parametrize(
    ("name", "tflops"),
    [("k40", 1.43), ("p100", 4.7), ("v100", 7.8), ("t4", 0.25), ("a100", 19.5), ("a30", 10.3), ("rtx3090", 0.556)]
    + [
        ("rtx4090", 1.29),
        ("h100", 67.0),
        ("h100-nvl", 60.0),
        ("h20", 1.0),
        ("b200", 40.0),
        ("mi100", 11.5),
        ("mi300x", 163.4),
    ],
)
def test_float64_products_reach_what_data_sheets_say(name, tflops):
    assert Hardware.named(name).product_flops("fp64") == pytest.approx(tflops * 1e12, rel=0.02)


@pytest.mark.parametrize(("name", "rate"), [("t4", 8.1e12 / 32 * 0.97), ("a10", 31.2e12 / 64 * 0.948)])
def test_power_does_not_hold_few_float64_units_back(name, rate):
    """A T4 and an A10 multiply in float64 at 1/32 and 1/64 of the peak of float32, which their power limits hold back."""
    us = kernel_us(replace(SQUARE, precision="fp64"), Hardware.named(name))
    assert us == pytest.approx(1e6 * SQUARE.flops / rate, rel=0.02)


def test_vector_arithmetic_needs_cycles():
    """A batch norm takes an A100, of 108 multiprocessors at 1.41 GHz, 1.72 times as long as an H100, of 132 at 1.98 GHz."""
    norm = Kernel(moved_bytes=1.0, vector_flops=1e13)
    ratio = kernel_us(norm, Hardware.named("a100")) / kernel_us(norm, Hardware.named("h100"))
    assert ratio == pytest.approx(132 * 1.98 / (108 * 1.41), rel=0.01)


@pytest.mark.parametrize("name", ["t4", "a10", "a100", "l4", "l40s", "rtx-pro-6000", "h100", "b200"])
def test_whole_matrix_units_reach_a_part(name):
    assert not is_halved(Hardware.named(name))


@pytest.mark.parametrize("field", ["multiprocessors", "l2_bytes", "power_w"])
def test_a_generation_needs_numbers_of_the_data_sheet(field):
    """What its constants are used with; a roofline needs none of them."""
    described = replace(Hardware.named("a10"), name="rtx-a6000", **{field: 0})
    with pytest.raises(InvalidInput, match=f"hardware {field} is 0; estimates of generation 'rtx-ampere' need it"):
        kernel_us(Kernel(moved_bytes=1e6), described)
    assert kernel_us(Kernel(moved_bytes=6e8), described.as_roofline()) == pytest.approx(1000 + 6.7)


def test_the_page_shows_the_table():
    page = (Path(bl.__file__).parent.parent / "docs" / "devices.md").read_text(encoding="utf-8")
    for h in HARDWARE.values():
        peaks = (h.peak_flops, h.matmul_flops, h.half_flops, h.fp8_flops, h.int8_ops)
        cells = [f"`{h.name}`", *(f"{peak / 1e12:g}" if peak else "-" for peak in peaks), f"{h.bandwidth / 1e9:g}"]
        assert f"| {' | '.join(cells)} | {h.memory_bytes / 1e9:g} | {', '.join(h.links) or '-'} |" in page
    for name, preset in LINKS.items():
        numbers = (preset.bandwidth / 1e9, preset.specified / 1e9, preset.latency_us)
        assert f"| `{name}` | {' | '.join(f'{number:.4g}' for number in numbers)} |" in page
