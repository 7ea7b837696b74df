"""Shapes of ATen operators' products and rows, by hand, and the same from torch.export and ONNX."""

import pytest

torch = pytest.importorskip("torch")

import baechi_lab as bl  # noqa: E402
from baechi_lab.profilers.torch.kernel_shapes import wait_us  # noqa: E402
from baechi_lab.profilers.torch.layer_estimate import estimate_layers  # noqa: E402
from baechi_lab.profilers.work import (  # noqa: E402
    INDEX_US,
    Kernel,
    Product,
    Rows,
    depthwise_flops,
    last_depthwise_flops,
    score_flops,
)


def kernels_of(model, *inputs, mode="inference"):
    kernels = estimate_layers(model, inputs, mode=mode).kernels
    return [kernel for _, kernel in kernels if not kernel.metadata]


def test_a_linear_layer_and_its_gradients():
    """32 x 16 by 16 x 8; the input's gradient sums over 8 columns, the weight's over 32 rows."""
    x = torch.empty(32, 16, device="meta", requires_grad=True)
    forward, *other_kernels = kernels_of(torch.nn.Linear(16, 8, device="meta"), x, mode="training")
    assert forward.products == (Product(1, 32, 8, 16),)
    products = [product for kernel in other_kernels for product in kernel.products]
    assert sorted((p.rows, p.columns, p.inner) for p in products) == [(8, 16, 32), (32, 16, 8)]


def test_a_convolution_and_its_gradients():
    """4 images of 8 x 8: 256 positions of 5 filters, sums over 3 * 9 numbers; Winograd's are in blocks of 4 x 8 parts."""
    x = torch.empty(4, 3, 8, 8, device="meta", requires_grad=True)
    model = torch.nn.Conv2d(3, 5, 3, padding=1, device="meta")
    forward, *other_kernels = kernels_of(model, x, mode="training")
    product = Product(1, 256, 5, 27, Product(16, 4 * 4 * 8, 5, 3))
    assert forward.convolution and forward.products == (product,)
    (backward,) = [kernel for kernel in other_kernels if kernel.products]
    assert backward.products == (product, product.right_gradient)
    (strided,) = kernels_of(torch.nn.Conv2d(3, 5, 3, stride=2, device="meta"), x)
    assert strided.products == (Product(1, 4 * 3 * 3, 5, 27),), "no Winograd"


def test_gradients_of_a_convolution_in_three_dimensions_are_marked():
    """Kernels for them are slower: of the input and of the filters, not of the output."""
    x = torch.empty(2, 4, 8, 8, 8, device="meta", requires_grad=True)
    layer = torch.nn.Conv3d(4, 6, 3, bias=False, device="meta")
    forward, backward = kernels_of(layer, x, mode="training")
    assert [product.of_volume for product in (*forward.products, *backward.products)] == [False, True, True]
    flat = torch.empty(2, 4, 8, 8, device="meta", requires_grad=True)
    forward, backward = kernels_of(torch.nn.Conv2d(4, 6, 3, bias=False, device="meta"), flat, mode="training")
    assert not any(product.of_volume for product in (*forward.products, *backward.products))


def test_a_depthwise_convolution_is_no_product_and_computes_an_index_per_output():
    """8 images of 256 channels of 28 x 28, windows of 9: 300 + 9 * 40 FLOPs per output in all readers, in full float32."""
    depthwise = torch.nn.Conv2d(256, 256, 3, padding=1, groups=256, bias=False, device="meta")
    x = torch.empty(8, 256, 28, 28, device="meta")
    (kernel,) = kernels_of(depthwise, x)
    assert kernel.products == () and not kernel.convolution
    assert kernel.moved_bytes == 4 * (2 * 8 * 256 * 28 * 28 + 256 * 9)
    assert kernel.flops == 2 * 9 * 8 * 256 * 28 * 28 and kernel.vector_flops == 660 * 8 * 256 * 28 * 28
    transposed = torch.nn.ConvTranspose2d(256, 256, 3, groups=256, bias=False, device="meta")
    assert [k.products for k in kernels_of(transposed, x)] == [()]
    (backward,) = [
        k for k in kernels_of(depthwise, x.requires_grad_(), mode="training") if k.flops > 2 * kernel.flops - 1
    ]
    assert backward.products == () and backward.vector_flops == pytest.approx(2 * 1.64 * kernel.vector_flops)
    x = x.detach()
    here_us, tf32_us = (
        bl.torch.profile(depthwise, x, mode="inference", hardware="t4", precision=p).duration_us.max()
        for p in ("fp32", "tf32")
    )
    assert here_us == tf32_us
    tf = pytest.importorskip("tensorflow")
    filters = tf.zeros((3, 3, 256, 1))
    step = bl.trace(lambda x: tf.nn.depthwise_conv2d(x, filters, [1, 1, 1, 1], "SAME"), tf.zeros((8, 28, 28, 256)))
    assert bl.profile(step, hardware="t4").duration_us.max() == pytest.approx(here_us, abs=0.3)


def depthwise_flops_of(last: bool, dtype: torch.dtype) -> tuple[float, float]:
    """Returns the FLOPs of 3 x 3 windows, stride 2, on 2 images of 4 channels of 8 x 8, forward and backward."""
    layer = torch.nn.Conv2d(4, 4, 3, 2, 1, groups=4, bias=False, device="meta", dtype=dtype)
    x = torch.empty(2, 4, 8, 8, device="meta", dtype=dtype)
    x = x.to(memory_format=torch.channels_last) if last else x
    forward, backward = (k for k in kernels_of(layer, x.requires_grad_(), mode="training") if k.vector_flops)
    return forward.vector_flops, backward.vector_flops


def test_the_input_gradient_of_a_depthwise_convolution_has_the_numbers_of_the_input():
    """512 of them, and 128 outputs; an H200 takes as long for each as for an output of a convolution without strides."""
    assert depthwise_flops_of(False, torch.float32) == pytest.approx((660 * 128, 1.64 * 660 * (512 + 128)))


def test_depthwise_convolutions_of_float16_have_kernels_of_their_own():
    """Three tenths of the FLOPs in windows of 3 x 3 and 5 x 5, forward and backward; bfloat16 and other windows have all."""
    assert depthwise_flops_of(False, torch.float16) == pytest.approx((0.3 * 660 * 128, 0.3 * 1.64 * 660 * (512 + 128)))
    assert depthwise_flops_of(False, torch.bfloat16) == depthwise_flops_of(False, torch.float32)
    assert depthwise_flops(10, (5, 5), "fp16") == 0.3 * 10 * 1300 and depthwise_flops(10, (7, 7), "fp16") == 10 * 2260


def test_depthwise_convolutions_whose_channels_come_last_have_kernels_of_their_own():
    """9 positions of a window: 24 FLOPs each, 25 for the filters; in 16 bits 51 + 10 each forward, 150 + 8 each for filters."""
    assert depthwise_flops_of(True, torch.float32) == (24 * 9 * 128, 24 * 9 * 512 + 25 * 9 * 128)
    assert depthwise_flops_of(True, torch.bfloat16) == (141 * 128, 24 * 9 * 512 + 222 * 128)
    assert last_depthwise_flops(10, (7, 7), 4, "filters") == 240_000, "a slow kernel"
    assert last_depthwise_flops(10, (7, 7), 2, "filters") == 10 * (150 + 8 * 49)


def test_convolutions_whose_channels_come_last_change_no_layouts():
    """The same convolution of 16 channels with a bias, and its gradients: only tensors whose channels come first are copied."""
    layer = torch.nn.Conv2d(16, 8, 3, device="meta", dtype=torch.bfloat16)
    first = torch.empty(2, 16, 8, 8, device="meta", dtype=torch.bfloat16, requires_grad=True)
    last = first.detach().to(memory_format=torch.channels_last).requires_grad_()
    for x, changes in ((first, True), (last, False)):
        forward, backward = (k for k in kernels_of(layer, x, mode="training") if k.convolution)
        assert (forward.layout_bytes > 0) == (backward.layout_bytes > 0) == changes
        assert forward.followed_by is not None


def test_a_pointwise_convolution_with_strides_copies_the_positions_that_it_uses():
    """In bytes: 4096 of the input and of its gradient, 512 of the output, 256 of filters; strides use a quarter of the input.

    The gradient of the input has all positions. Both gradients read that of the output.
    """
    layer = torch.nn.Conv2d(16, 8, 1, stride=2, bias=False, device="meta", dtype=torch.bfloat16)
    x = torch.empty(2, 16, 8, 8, device="meta", dtype=torch.bfloat16, requires_grad=True)
    forward, backward = kernels_of(layer, x, mode="training")
    assert forward.layout_bytes == 2 * (4096 / 4 + 256 + 512)
    assert backward.moved_bytes == 2 * (4096 + 256 + 512)
    assert backward.layout_bytes == 2 * ((4096 + 256 + 512) + (4096 / 4 + 256 + 512))
    assert [product.has_gaps for product in (*forward.products, *backward.products)] == [False, True, False]
    assert {product.channels for product in (*forward.products, *backward.products)} == {16}


def test_attention_of_16_bit_numbers_computes_tiles_of_128_queries_and_keys():
    """6 heads of 49 queries: a tile each, 8 FLOPs for each of 128 x 128 scores and 800,000 besides; of 130 queries: two tiles."""
    for positions, tiles, keys in ((49, 1, 128), (130, 2, 256)):
        flops = score_flops(Product(6, positions, positions, 32), 2)
        assert flops == 6 * tiles * (800_000 + 8 * 128 * keys)
    assert score_flops(Product(6, 49, 49, 32), 4) == 200 * 6 * 49 * 49


def test_a_batch_norm_with_given_statistics_takes_a_plane_after_another():
    """6 planes of 7 x 7 numbers take .082 us each at least, those of 32 x 32 take 3.6e-4 us per number; in training as before."""
    layer = torch.nn.BatchNorm2d(3, device="meta").eval()
    for size, us in ((7, 6 * 0.082), (32, 6 * 1024 * 3.6e-4)):
        (kernel,) = kernels_of(layer, torch.empty(2, 3, size, size, device="meta"))
        assert kernel.multiprocessor_us == pytest.approx(us) and kernel.vector_flops == 0
    x = torch.empty(2, 3, 7, 7, device="meta").to(memory_format=torch.channels_last)
    assert kernels_of(layer, x)[0].multiprocessor_us == 0
    x = torch.empty(2, 3, 7, 7, device="meta", requires_grad=True)
    assert kernels_of(layer, x, mode="training")[0].multiprocessor_us == 0


def test_causal_attention_skips_half_of_the_keys_and_computes_every_score():
    """2 * 4 heads of 64 queries and keys of size 16: each sees 32 keys on average; TF32 makes no difference."""

    class Attention(torch.nn.Module):
        def forward(self, x, causal):
            return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=causal)

    x = torch.empty(2, 4, 64, 16, device="meta", requires_grad=True)
    full, half = (
        [k for k in kernels_of(Attention(), x, causal, mode="training") if k.batched] for causal in (False, True)
    )
    assert full[0].products == (Product(8, 64, 64, 16), Product(8, 64, 16, 64))
    for all_keys, seen_keys in zip(full, half, strict=True):
        assert all_keys.vector_flops == 200 * 8 * 64 * 64 == 2 * seen_keys.vector_flops
        assert sum(p.flops for p in all_keys.products) == 2 * sum(p.flops for p in seen_keys.products)
    x = x.detach()
    plain, tf32 = (
        estimate_layers(Attention(), (x, True), precision=p, mode="inference").kernels[0][1] for p in ("fp32", "tf32")
    )
    assert plain.precision == tf32.precision == "fp32"


class Positions(torch.nn.Module):
    """Attention with a trained mask of 3 x 5 x 5, whose rows lie in memory one after another, or column by column."""

    def __init__(self, by_columns):
        super().__init__()
        shape = (5, 5, 3) if by_columns else (3, 5, 5)
        self.positions = torch.nn.Parameter(torch.empty(shape, device="meta"))
        self.by_columns = by_columns

    def forward(self, x):
        mask = self.positions.permute(2, 0, 1) if self.by_columns else self.positions
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, mask[None], dropout_p=0.1)


def test_a_mask_by_columns_is_attention_operator_by_operator_with_its_dropout():
    """Scores of 2 x 3 x 5 x 5, their mask of dropout and what comes out of it are kept for the backward pass."""
    x = torch.empty(2, 3, 5, 4, device="meta", requires_grad=True)
    kernels = kernels_of(Positions(by_columns=True), x, mode="training")
    assert [k.products for k in kernels if k.products][:2] == [(Product(6, 5, 5, 4),), (Product(6, 5, 4, 5),)]
    graph = bl.torch.profile(Positions(by_columns=True), x, hardware="h100", granularity="operator")
    assert {"native_dropout", "_safe_softmax"} <= {op_type.split(".")[-1] for op_type in graph.op_types}
    for by_columns, products in ((False, [2]), (True, [1, 1])):
        model = Positions(by_columns).requires_grad_(False)
        assert [len(k.products) for k in kernels_of(model, x.detach()) if k.batched] == products, (
            "without training, too"
        )


class Biased(torch.nn.Module):
    """Attention of 2 samples with 3 heads, whose mask is a parameter."""

    def __init__(self, shape):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.empty(shape, device="meta"))

    def forward(self, x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, self.bias)


@pytest.mark.parametrize("shape", [(3, 5, 5), (1, 5, 5), (1, 3, 5, 5), (5, 5)])
def test_bug_masks_of_heads_were_attention_operator_by_operator(shape):
    """The mask of MaxViT has no dimension of samples; its networks were 18 to 56 % too long in inference."""
    x = torch.empty(2, 3, 5, 4, device="meta")
    (kernel,) = (k for k in kernels_of(Biased(shape), x) if k.products)
    assert len(kernel.products) == 2
    frozen = Biased(shape).requires_grad_(False)
    training = kernels_of(frozen, x.requires_grad_(), mode="training")
    assert next(len(k.products) for k in training if k.products) == 2


def test_rows_that_matrix_units_cannot_load_at_once():
    """50,257 words of 2 bytes lie at odd multiples of 2; 50,264 at multiples of 16. Numbers of rows do not count."""

    def alignments(inputs, outputs, count=7):
        x = torch.empty(count, inputs, device="meta", requires_grad=True)
        layer = torch.nn.Linear(inputs, outputs, device="meta")
        kernels = estimate_layers(layer, (x,), mode="training", precision="bf16").kernels
        return [kernel.row_alignment for _, kernel in kernels if kernel.products]

    assert alignments(768, 50257) == [2, 2, 2] and alignments(768, 50260) == [8, 8, 8]
    assert alignments(768, 50264) == [16, 16, 16]


def test_a_batch_norm_runs_channel_by_channel_and_a_convolution_changes_layouts():
    """2 images of 3 channels of 4 x 4: 280 FLOPs per number, 600 backward; a kernel adds the bias to 2 x 8 x 2 x 2 numbers."""
    x = torch.empty(2, 3, 4, 4, device="meta", requires_grad=True)
    flops = [k.vector_flops for k in kernels_of(torch.nn.BatchNorm2d(3, device="meta"), x, mode="training") if k.rows]
    assert flops == [280 * 96, 600 * 96]
    last = x.detach().to(memory_format=torch.channels_last).requires_grad_()
    norms = [k for k in kernels_of(torch.nn.BatchNorm2d(3, device="meta"), last, mode="training") if k.rows]
    assert [k.vector_flops for k in norms] == [0, 0], "memory bounds a batch norm whose channels come last"
    rows = torch.empty(64, 3, device="meta", requires_grad=True)
    norms = [k for k in kernels_of(torch.nn.BatchNorm1d(3, device="meta"), rows, mode="training") if k.rows]
    assert [k.vector_flops for k in norms] == [0, 0], "channels of a matrix come last"
    (kernel,) = kernels_of(torch.nn.Conv2d(3, 8, 3, device="meta"), x.detach())
    assert kernel.layout_bytes == 2 * kernel.moved_bytes
    assert kernel.followed_by == Kernel(moved_bytes=2 * 4 * 64, multiprocessor_us=INDEX_US * 64)
    (pointwise,) = kernels_of(torch.nn.Conv2d(3, 8, 1, bias=False, device="meta"), x.detach())
    assert pointwise.layout_bytes == 0


def test_bug_gradients_of_groups_were_counted_once_per_group():
    """16 channels in 4 groups: both gradients do the forward pass's 2 * 2 * 8 * 8 * 16 * (4 * 9) FLOPs."""
    layer = torch.nn.Conv2d(16, 16, 3, padding=1, groups=4, bias=False, device="meta")
    x = torch.empty(2, 16, 8, 8, device="meta", requires_grad=True)
    forward, *other_kernels = kernels_of(layer, x, mode="training")
    assert forward.flops == 2 * 2 * 8 * 8 * 16 * 4 * 9
    assert [kernel.flops for kernel in other_kernels if kernel.products] == [2 * forward.flops]


def test_gradients_of_a_transposed_convolution_are_those_of_a_convolution():
    """2 x 5 x 5 positions of 8 channels from 6 filters of 4 x 4: those that a convolution of 6 channels by 8 filters has.

    The gradient of its filters was turned round, so that tiles as wide as there are filters did not fit: 4 times as long as in
    TensorFlow on an A100, for 32 channels and 16 filters in three dimensions.
    """
    layer = torch.nn.ConvTranspose2d(8, 6, 4, stride=2, bias=False, device="meta")
    x = torch.empty(2, 8, 5, 5, device="meta", requires_grad=True)
    forward, *other_kernels = kernels_of(layer, x, mode="training")
    assert forward.products == (Product(1, 50, 6 * 16, 8),)
    (backward,) = [kernel for kernel in other_kernels if kernel.products]
    convolution = torch.nn.Conv2d(6, 8, 4, stride=2, bias=False, device="meta")
    convolved, *_ = kernels_of(convolution, torch.empty(2, 6, 12, 12, device="meta"), mode="training")
    assert convolved.products == (Product(1, 50, 8, 6 * 16),)
    assert backward.products == (convolved.products[0], convolved.products[0].right_gradient)
    assert backward.products[1] == Product(1, 6 * 16, 8, 50)
    assert backward.flops == 2 * forward.flops == 2 * (2 * 50 * 8 * 6 * 16)


def test_attention_is_two_products_for_every_head():
    class Attention(torch.nn.Module):
        def forward(self, q, k, v):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    q, k, v = (torch.empty(2, 4, size, 16, device="meta") for size in (32, 64, 64))
    products = [product for kernel in kernels_of(Attention(), q, k, v) for product in kernel.products]
    assert products == [Product(8, 32, 64, 16), Product(8, 32, 16, 64)]


def test_rows_that_are_read_again():
    (norm,) = kernels_of(torch.nn.LayerNorm(64, device="meta"), torch.empty(10, 64, device="meta"))
    assert norm.rows == Rows.of_norm(640, 64, 4)
    (softmax,) = kernels_of(torch.nn.Softmax(1), torch.empty(3, 20_000, device="meta"))
    assert softmax.rows == Rows(240_000.0, 80_000.0, 2)
    x = torch.empty(3, 20_000, device="meta", requires_grad=True)
    backward = kernels_of(torch.nn.Softmax(1), x, mode="training")[-1]
    assert backward.rows == Rows(480_000.0, 160_000.0, 1), "output and gradient, for the sum and for the gradient"
    assert backward.moved_bytes == backward.followed_by.moved_bytes == 3 * 240_000, "the product of both is a kernel"


@pytest.mark.parametrize(
    ("rows", "columns", "us"),
    [
        (128, 4096, 2.0),  # 32 numbers per thread of four
        (8192, 4096, 8.0 + 0.055 * 64),  # as many parts as fill a device
        (65536, 256, 8.0 + 0.055 * 1024),  # 16 numbers per thread
        (4096, 8, 8.0 + 0.055 * 4),  # 64 threads share a column
    ],
)
def test_parts_of_the_rows_of_a_sum_wait_for_each_other(rows, columns, us):
    x = torch.empty(rows, columns, device="meta")
    args = (x, [0], True)
    assert wait_us("sum", args, x.sum(0)) == pytest.approx(us)
    assert wait_us("sum", (x.T, [1], True), x.sum(0)) == wait_us("sum", (x,), x.sum()) == 0


def test_gradients_of_a_norms_weights_sum_columns_in_a_kernel_of_their_own():
    """96 columns are three blocks, so that three multiprocessors sum all rows, unless there are more than 65,536 of them."""
    for count, blocks in ((1000, 3), (2**16 + 1, 0)):
        x = torch.empty(count, 96, device="meta", requires_grad=True)
        forward, backward = kernels_of(torch.nn.LayerNorm(96, device="meta"), x, mode="training")
        sums = backward.followed_by
        assert forward.multiprocessor_us == pytest.approx((0.17 + 0.65 * 4.6e-4 * 96) * count), "short rows"
        assert sums.moved_bytes == 2 * 4 * 96 * count and sums.rows.count == blocks
        assert sums.multiprocessor_us == pytest.approx(1.4e-4 * 96 * count)
        assert backward.moved_bytes == pytest.approx(3 * 4 * 96 * count, rel=0.05), "each tensor once"
    bare = torch.nn.LayerNorm(96, elementwise_affine=False, device="meta")
    assert kernels_of(bare, x, mode="training")[-1].followed_by is None


def test_gradients_of_a_table_are_written_sorted_and_summed():
    """16 words of 8 numbers, of a table of 100."""
    layer, words = torch.nn.Embedding(100, 8, device="meta"), torch.zeros(16, dtype=torch.long)
    backward = kernels_of(layer, words, mode="training")[-1]
    assert backward.followed_by == Kernel(moved_bytes=3 * 4 * 128, multiprocessor_us=1.9e-3 * 128, wait_us=75.0)


def test_operands_of_another_order_or_type_take_an_index_per_number():
    """Only copies of float32 numbers to 16-bit ones have a kernel that needs none."""
    x = torch.empty(4, 8, device="meta")
    half = x.bfloat16()

    def number_us(call):
        class Model(torch.nn.Module):
            def forward(self, a):
                return call(a)

        (kernel,) = kernels_of(Model(), x)
        return kernel.multiprocessor_us / 32

    assert number_us(lambda a: a + 1) == number_us(lambda a: a.bfloat16()) == 0
    assert number_us(lambda a: a.T.contiguous()) == pytest.approx(INDEX_US)
    kernels = estimate_layers(Widen(), (half,), mode="inference").kernels
    assert [k.multiprocessor_us for _, k in kernels if not k.metadata] == [pytest.approx(32 * INDEX_US)]


class Widen(torch.nn.Module):
    def forward(self, x):
        return x.float()


def test_neither_operand_of_a_weights_gradient_lies_along_the_summed_dimension():
    x = torch.empty(32, 16, device="meta", requires_grad=True)
    kernels = kernels_of(torch.nn.Linear(16, 8, device="meta"), x, mode="training")
    crossed = {k.products[0].inner: k.crossed for k in kernels if k.products}
    assert crossed == {16: False, 8: False, 32: True}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (torch.nn.Linear(64, 96), (32, 64)),
        (torch.nn.Conv2d(8, 16, 3, padding=1), (2, 8, 14, 14)),
        (torch.nn.Conv2d(8, 16, 3, stride=2, groups=2), (2, 8, 14, 14)),
        (torch.nn.Conv2d(3, 8, 1, stride=2), (2, 3, 64, 64)),
        (torch.nn.Conv2d(64, 64, 3, groups=64), (2, 64, 14, 14)),
        (torch.nn.ConvTranspose2d(16, 8, 4, stride=2), (2, 16, 14, 14)),
        (torch.nn.LayerNorm(4096), (512, 4096)),
        (torch.nn.Softmax(-1), (256, 3000)),
        (torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.RMSNorm(64)), (256, 64)),
        (
            torch.nn.Sequential(torch.nn.Conv2d(8, 8, 1), torch.nn.GroupNorm(2, 8), torch.nn.MaxPool2d(2)),
            (2, 8, 64, 64),
        ),
    ],
    ids=lambda value: getattr(value, "_get_name", lambda: "")(),
)
def test_torch_export_has_the_same_time(layer, shape):
    """Of a forward pass, and of a training step without its updates; of an operator's two gradients, each may be a kernel."""
    x = torch.empty(*shape)
    program = torch.export.export(layer, (x,))
    direct = bl.torch.profile(layer, x, hardware="t4", mode="inference").duration_us.sum()
    exported = bl.profile_program(program, hardware="t4", training=False).duration_us.sum()
    assert exported == pytest.approx(direct, abs=1.0), "a view more or less"
    direct = bl.torch.profile(layer, x, hardware="t4", mode="training", granularity="operator").duration_us.sum()
    trained = bl.profile_program(program, hardware="t4")
    updates = [name.endswith("/update") for name in trained.names]
    assert trained.duration_us.sum() - trained.duration_us[updates].sum() == pytest.approx(direct, abs=7.0), "a launch"


@pytest.mark.parametrize(
    ("norm", "row"),
    [
        (torch.nn.BatchNorm2d(6), 4 * 25 * 2),  # a channel of the batch
        (torch.nn.GroupNorm(2, 6), 4 * 25 * 3),  # a group of 3 channels
        (torch.nn.LayerNorm((5, 5)), 4 * 25),
        (torch.nn.RMSNorm((5, 5)), 4 * 25),
        (torch.nn.InstanceNorm2d(6), 4 * 25),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_backward_pass_of_a_norm_reads_gradient_and_input_again(norm: torch.nn.Module, row: int) -> None:
    """2 images of 6 channels of 5 x 5, 300 numbers of 4 bytes, for the input and for its gradient."""
    x = torch.empty(2, 6, 5, 5, device="meta", requires_grad=True)
    rows = [k.rows for k in kernels_of(norm.to("meta"), x, mode="training") if k.rows is not None]
    assert rows == [Rows(1200.0, float(row), 1, norm=True), Rows(2400.0, float(row), 1, norm=True)]


def test_a_norm_of_stored_statistics_reads_nothing_again() -> None:
    class Frozen(torch.nn.BatchNorm2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias)

    x = torch.empty(2, 6, 5, 5, device="meta", requires_grad=True)
    assert [k.rows for k in kernels_of(Frozen(6, device="meta"), x, mode="training") if k.rows is not None] == []


def test_bug_layers_of_attention_had_no_products_in_inference() -> None:
    """One operator of PyTorch computes the whole layer; its products were not seen."""
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True, device="meta").eval()
    kernels = kernels_of(layer, torch.empty(4, 8, 16, device="meta"))
    linear = 2 * 4 * 8 * (16 * 48 + 16 * 16 + 2 * 16 * 32)
    assert sum(product.flops for k in kernels for product in k.products) == linear + 2 * (2 * 4 * 2 * 8 * 8 * 8)
    assert torch.backends.mha.get_fastpath_enabled()
