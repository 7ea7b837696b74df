"""FLOPs and bytes of single ATen calls, by hand."""

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from baechi_lab.profilers.torch.kernels import kernel_of  # noqa: E402


class Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.kernels = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.namespace == "aten":
            self.kernels[func.overloadpacket.__name__] = kernel_of(func, args, kwargs or {}, out)
        return out


def kernels(run):
    with Recorder() as recorder:
        run()
    return recorder.kernels


def test_element_wise_operators():
    """One operation per element; bytes of two inputs and an output of 6 floats; a view moves nothing, what is expanded little."""
    a, b = torch.ones(2, 3), torch.ones(3)
    kernel_of = kernels(lambda: (a + a * 2).view(3, 2))
    assert (kernel_of["add"].flops, kernel_of["add"].moved_bytes, kernel_of["add"].matrix) == (6, 3 * 24, False)
    assert kernel_of["view"].metadata
    assert kernels(lambda: a + b.expand(2, 3))["add"].moved_bytes == 24 + 12 + 24


def test_products_in_place_are_those_of_the_operators_that_they_are_named_after():
    """addmm_ is what addmm is; addbmm adds up three products of 8 x 4 and 4 x 5."""
    a, b, batches = torch.ones(8, 4), torch.ones(4, 5), (torch.ones(3, 8, 4), torch.ones(3, 4, 5))
    plain = kernels(lambda: torch.addmm(torch.ones(8, 5), a, b))["addmm"]
    in_place = kernels(lambda: torch.ones(8, 5).addmm_(a, b))["addmm_"]
    assert (in_place.flops, in_place.matrix, in_place.products) == (2 * 8 * 5 * 4, True, plain.products)
    assert kernels(lambda: torch.ones(3, 8, 5).baddbmm_(*batches))["baddbmm_"].flops == 2 * 3 * 8 * 5 * 4
    for kernel in kernels(lambda: torch.addbmm(torch.ones(8, 5), *batches)).values():
        assert kernel.metadata or kernel.flops in (0, 2 * 3 * 8 * 5 * 4)
    assert kernels(lambda: torch.addbmm(torch.ones(8, 5), *batches))["addbmm"].products[0].flops == 2 * 3 * 8 * 5 * 4


def test_bug_a_lookup_of_a_few_numbers_read_the_whole_table():
    """24 rows of 16 numbers are read and 8 sums written, or 24 rows read, changed and written, however many rows there are."""
    indices, sources = torch.arange(24), torch.ones(24, 16)
    indices_per_number = indices[:, None].expand(24, 16).contiguous()

    def moved_bytes(rows):
        table = torch.ones(rows, 16)
        recorded = kernels(
            lambda: (
                torch.nn.functional.embedding_bag(indices.view(8, 3), table),
                torch.take(table, indices),
                table.scatter_reduce_(0, indices_per_number, sources, "amax"),
                table.index_reduce_(0, indices, sources, "amax"),
                table.put_(indices, sources[:, 0]),
                torch.nn.functional.embedding(indices, table, max_norm=1.0),
            )
        )
        names = "_embedding_bag_forward_only", "take", "scatter_reduce_", "index_reduce_", "put_", "embedding_renorm_"
        return [recorded[name].moved_bytes for name in names]

    assert moved_bytes(1_000) == moved_bytes(100_000)
    row_bytes, index_bytes = 16 * 4, 24 * 8
    sum_of_rows, row_lookup, reduced_numbers, reduced_rows, row_write, shortened_rows = moved_bytes(1_000)
    assert sum_of_rows >= (24 + 8) * row_bytes + index_bytes and sum_of_rows < 50 * row_bytes
    assert row_lookup == 2 * 24 * 4 + index_bytes
    assert reduced_numbers == 16 * index_bytes + 24 * row_bytes + 2 * 16 * index_bytes
    assert reduced_rows == index_bytes + 3 * 24 * row_bytes
    assert row_write == index_bytes + 24 * 4 + 2 * index_bytes
    assert shortened_rows == index_bytes + 2 * 24 * row_bytes


def test_bug_sorting_long_rows_moved_their_numbers_once():
    """4 passes, for 8 bits each, read and write 4 bytes and a position of 8 bytes; a selection reads in 5 passes."""
    x, short = torch.rand(2, 8192), torch.rand(128, 128)
    recorded = kernels(lambda: (x.sort(-1), x.topk(3), short.t().contiguous()))
    assert recorded["sort"].moved_bytes == 4 * 2 * 2 * 8192 * (4 + 8)
    assert recorded["topk"].moved_bytes == 5 * 2 * 8192 * 4
    assert kernels(lambda: x.topk(8192))["topk"].moved_bytes == recorded["sort"].moved_bytes
    assert kernels(lambda: x.half().kthvalue(5))["kthvalue"].moved_bytes == 3 * 2 * 8192 * 2
    assert kernels(lambda: x.median())["median"].moved_bytes == 5 * 2 * 8192 * 4
    assert kernels(lambda: x.t().sort(0))["sort"].moved_bytes == recorded["sort"].moved_bytes
    assert kernels(lambda: x.sort(0))["sort"].moved_bytes == 2 * 8192 * (4 + 4 + 8), "rows of two numbers"
    assert kernels(lambda: torch.sort(x, stable=True, dim=0))["sort"].moved_bytes == 2 * 8192 * (4 + 4 + 8)
    assert kernels(lambda: x.unique())["_unique2"].moved_bytes == recorded["sort"].moved_bytes
    assert kernels(lambda: short.sort())["sort"].moved_bytes == 128 * 128 * (4 + 4 + 8), "one block sorts a row"


def test_bug_a_product_with_packed_weights_of_4_bits_counted_its_bytes_only():
    """64 x 256 times 256 x 128 numbers, packed in tiles; a pair of scale and zero point per group of 128 summed numbers."""
    with FakeTensorMode():
        rows = torch.empty(64, 256, dtype=torch.bfloat16)
        packed = torch.empty(16, 16, 32, 1, dtype=torch.int32)
        scales = torch.empty(2, 128, 2, dtype=torch.bfloat16)
        weights = torch.empty(128, 256, dtype=torch.int8)
    kernel = kernels(lambda: torch._weight_int4pack_mm(rows, packed, 128, scales))["_weight_int4pack_mm"]
    assert (kernel.flops, kernel.matrix, kernel.precision) == (2 * 64 * 128 * 256, True, "bf16")
    assert [(p.count, p.rows, p.columns, p.inner) for p in kernel.products] == [(1, 64, 128, 256)]
    kernel_of_8_bits = kernels(lambda: torch._weight_int8pack_mm(rows, weights, scales[0, :, 0]))["_weight_int8pack_mm"]
    assert (kernel_of_8_bits.flops, kernel_of_8_bits.products) == (kernel.flops, kernel.products)


def test_operators_on_all_pairs_of_rows():
    """64 times 32 pairs of 16 numbers: a product where they are many, else a difference, a power and a sum for each number."""
    x, y = torch.rand(64, 16, requires_grad=True), torch.rand(32, 16)
    assert kernels(lambda: torch.cdist(x, y))["_euclidean_dist"].products[0].flops == 2 * 64 * 32 * 16
    powers = kernels(lambda: torch.cdist(x, y, 3.0).sum().backward())
    assert powers["_cdist_forward"].flops == 3 * 64 * 32 * 16
    assert powers["_cdist_backward"].flops == 5 * 64 * 32 * 16
    assert kernels(lambda: torch.pdist(x))["_pdist_forward"].flops == 3 * (64 * 63 // 2) * 16
    bilinear = kernels(lambda: torch.nn.functional.bilinear(x[:, :4], x[:, :5], torch.rand(7, 4, 5)))
    assert bilinear["_trilinear"].flops == 3 * 64 * 7 * 4 * 5


def test_arithmetic_per_element():
    """exp ten per element, sqrt four, softmax 15, a layer norm 8, a sum one per element read; copies and masks none."""
    x = torch.rand(4, 8, requires_grad=True)

    def run():
        y = torch.nn.functional.layer_norm(x.exp().sqrt(), (8,)).softmax(-1)
        y.masked_fill(y > 0.5, 0.0).clone().sum().backward()

    flops_per_element = {name: kernel.flops / 32 for name, kernel in kernels(run).items()}
    expected = {
        "exp": 10,
        "sqrt": 4,
        "native_layer_norm": 8,
        "_softmax": 15,
        "sum": 1,
        "gt": 1,
        "masked_fill": 0,
        "clone": 0,
    }
    assert {name: flops_per_element[name] for name in expected} == expected
    assert flops_per_element["_softmax_backward_data"] == 4 and flops_per_element["native_layer_norm_backward"] == 14
    images = torch.rand(1, 2, 6, 6)
    assert kernels(lambda: torch.nn.functional.avg_pool2d(images, 3))["avg_pool2d"].flops == 9 * 2 * 2 * 2
    assert (
        kernels(lambda: torch.nn.functional.max_pool2d(images, (2, 3)))["max_pool2d_with_indices"].flops
        == 6 * 2 * 3 * 2
    )
    assert kernels(lambda: torch.nn.functional.adaptive_avg_pool2d(images, 2))["_adaptive_avg_pool2d"].flops == 72
    assert kernels(lambda: torch.randn(4, 8))["randn"].flops == 10 * 32


def test_arithmetic_can_decide_on_a_processor():
    """320 operations of one element: at a tenth of 100 GFLOP/s they last 32 ns, longer than its 8 bytes at 1 GB/s."""
    from dataclasses import replace

    from baechi_lab.graph.hardware import Hardware
    from baechi_lab.profilers.kernel_model import kernel_us
    from baechi_lab.profilers.work import Kernel

    core = replace(Hardware.named("cpu-core"), peak_flops=100e9, bandwidth=1e9, launch_us=0.0, arithmetic_share=0.1)
    assert kernel_us(Kernel(flops=320.0, moved_bytes=8.0), core) == pytest.approx(0.032)
    assert kernel_us(Kernel(flops=70.0, moved_bytes=8.0), core) == pytest.approx(0.008)


def test_writes_in_place():
    """`add_` reads two and writes one; `copy_` and `fill_` do not read what they overwrite."""
    a, b = torch.ones(2, 3), torch.ones(2, 3)
    kernel_of = kernels(lambda: (a.add_(b), a.copy_(b), a.fill_(1.0)))
    assert [kernel_of[name].moved_bytes for name in ("add_", "copy_", "fill_")] == [72, 48, 24]


def test_each_gradient_of_a_convolution_reads_its_operands():
    """In bytes: 2 x 4 x 8 x 8 numbers of the input, 2 x 4 x 8 x 8 of the output and 4 x 4 x 9 of filters, of 4 bytes each."""
    image, weight = torch.ones(2, 4, 8, 8), torch.ones(4, 4, 3, 3)

    def moved_bytes(of_input, of_filters):
        image.requires_grad_(of_input), weight.requires_grad_(of_filters)
        out = torch.nn.functional.conv2d(image, weight, padding=1)
        kernel = kernels(lambda: out.backward(torch.ones_like(out)))["convolution_backward"]
        assert kernel.steps == of_input + of_filters
        return kernel.moved_bytes

    of_one = 4 * (512 + 512 + 144)
    assert [moved_bytes(True, False), moved_bytes(False, True), moved_bytes(True, True)] == [of_one, of_one, 2 * of_one]


def test_tensors_that_are_given_for_their_shape_are_not_read():
    """The gradient of 2 x 2 means of 64 numbers reads 16 numbers and writes 64; zeros are written only."""
    x = torch.ones(1, 1, 8, 8, requires_grad=True)
    out = torch.nn.functional.avg_pool2d(x, 2)
    assert kernels(lambda: out.backward(torch.ones(1, 1, 4, 4)))["avg_pool2d_backward"].moved_bytes == 4 * (16 + 64)
    assert kernels(lambda: torch.zeros_like(x))["zeros_like"].moved_bytes == 4 * 64


def test_losses_are_written_per_number_before_they_are_summed():
    """1000 numbers of prediction and target are read, 1000 losses are written and read again."""
    prediction, target = torch.ones(10, 100), torch.ones(10, 100)
    mean = kernels(lambda: torch.nn.functional.mse_loss(prediction, target))["mse_loss"]
    each = kernels(lambda: torch.nn.functional.mse_loss(prediction, target, reduction="none"))["mse_loss"]
    assert (mean.moved_bytes, each.moved_bytes) == (4 * 4 * 1000, 3 * 4 * 1000)


def test_looked_up_rows():
    """Two rows of 4 floats out of a table of a thousand: read and written, and two indices of 8 bytes."""
    table, index = torch.ones(1000, 4), torch.tensor([1, 2])
    assert kernels(lambda: torch.nn.functional.embedding(index, table))["embedding"].moved_bytes == 2 * 32 + 16


@pytest.mark.parametrize(
    ("dtype", "precision"), [(torch.float32, "fp32"), (torch.bfloat16, "bf16"), (torch.float16, "fp16")]
)
def test_a_batch_of_products_has_flops_and_precision(dtype, precision):
    a, b = torch.ones(2, 8, 16, dtype=dtype), torch.ones(2, 16, 4, dtype=dtype)
    kernel = kernels(lambda: torch.bmm(a, b))["bmm"]
    assert (kernel.flops, kernel.precision, kernel.batched) == (2 * 2 * 8 * 16 * 4, precision, True)


def test_convolution_in_full_float32():
    """Batch 1, 3 -> 5 channels, 3 x 3 kernel, 6 x 6 outputs."""
    kernel = kernels(lambda: torch.nn.functional.conv2d(torch.ones(1, 3, 8, 8), torch.ones(5, 3, 3, 3)))["convolution"]
    assert (kernel.flops, kernel.precision) == (2 * 5 * 36 * 3 * 9, "fp32")


def test_fused_attention_with_fewer_keys_than_queries():
    """Batch 2, 4 heads, 16 queries, 16 keys of 2 heads, width 8: two products forward, five backward."""
    query, key = torch.ones(2, 4, 16, 8, requires_grad=True), torch.ones(2, 2, 16, 8, requires_grad=True)
    run = torch.nn.functional.scaled_dot_product_attention
    kernel_of = kernels(lambda: run(query, key, key, enable_gqa=True).sum().backward())
    one = 2 * 2 * 4 * 16 * 16 * 8
    attention = [k.flops for name, k in kernel_of.items() if "attention" in name]
    assert attention == [2 * one, 5 * one]


def test_products_with_a_vector_have_flops():
    a, x = torch.ones(8, 16), torch.ones(16)
    assert kernels(lambda: torch.mv(a, x))["mv"].flops == 2 * 8 * 16
    assert kernels(lambda: torch.addmv(torch.ones(8), a, x))["addmv"].flops == 2 * 8 * 16


def test_bug_a_binary_search_read_each_number_once():
    """Rows of 1000 numbers take 10 reads per value, of which the result has 8 bytes."""
    rows, values = torch.empty(1000, device="meta"), torch.empty(64, 8, device="meta")
    expected_bytes = 64 * 8 * (10 * 4 + 4 + 8)
    out = torch.searchsorted(rows, values)
    assert kernel_of(torch.ops.aten.searchsorted.Tensor, (rows, values), {}, out).moved_bytes == expected_bytes
    assert kernel_of(torch.ops.aten.bucketize.Tensor, (values, rows), {}, out).moved_bytes == expected_bytes
    out = torch.searchsorted(rows, 3.0)
    assert kernel_of(torch.ops.aten.searchsorted.Scalar, (rows, 3.0), {}, out).moved_bytes == 10 * 4 + 8
