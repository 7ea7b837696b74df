"""`mode="estimated"`: the FLOPs and bytes of TensorFlow's ops, from the shapes of their tensors.

`profilers/kernel_model.py` turns them into time. Ops that move no data take the host overhead. Constants and handles, which exist
before the step, take no time. Nor does adding a bias to a matrix product, which is
a part of the product's kernel. A loop, conditional or call is one op that takes as long as the ops that it runs (see
`function_bodies`), or as the one kernel that a GPU runs in its place (`recurrent_layers`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from ...internal_warnings import outer_stacklevel
from ..arithmetic import sorting_bytes
from ..programs.estimation import GuessedCosts
from ..work import PRECISION_BYTES, Kernel, Work, product_of_complex_numbers, work_of
from .float_types import complex_types, product_precisions
from .flops import (
    METADATA_OPS,
    flops,
    has_crossed_operands,
    is_convolution,
    is_matrix_product,
    layout_bytes,
    multiprocessor_us,
    product_shapes,
    repeated_rows,
    row_alignment,
    vector_flops,
    wait_us,
)
from .function_bodies import Library
from .nodes import HANDLE_BYTES, biases_of_products, bytes_per_element, data_inputs
from .recurrent_layers import kernel_plumbing
from .structure import Structure

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef

_MAKES_SHAPES = frozenset({"Shape", "ShapeN", "Size", "Rank", "VariableShape", "BroadcastGradientArgs", "ConcatOffset"})
_TAKES_NO_TIME = frozenset({"Const", "VarHandleOp", "Placeholder", "NoOp"})
_TOUCHES_PART = frozenset(
    {"Gather", "GatherV2", "GatherNd", "ResourceGather", "ResourceGatherNd", "Slice", "StridedSlice"}
)
_SORTS_ROWS = frozenset({"TopK", "TopKV2", "Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2"})
_SEGMENTS = ("SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN")
_TABLE_OF_ROWS = {
    "SparseTensorDenseMatMul": 3,
    **dict.fromkeys((*_SEGMENTS, *(f"{op}WithNumSegments" for op in _SEGMENTS)), 0),
}
"""Op -> position of the table of which it reads a row for each entry of its input 1."""
Shapes = Sequence[tuple[int, ...]]
Sizes = Sequence[int]
_IN_PLACE = ("AssignAdd", "AssignSub", "ResourceApply", "ResourceSparseApply", "ResourceScatter")


def count_work(structure: Structure) -> Work:
    """Counts the FLOPs and bytes of every op from the shapes of its tensors.

    Warns with `GuessedCosts` of loops whose iterations or sizes are not known, and of tensors whose sizes depend on data.
    """
    precisions, width = product_precisions(), bytes_per_element()
    sizes, shapes = structure.tensor_bytes.tolist(), structure.shapes
    library = Library(structure.graph_def)
    biases = biases_of_products(structure.nodes)
    rows: list[tuple[int, Kernel]] = []
    times: list[float] = []
    free: list[bool] = []
    plumbing = kernel_plumbing(structure)
    host_tensors: set[int] = set()

    def add(
        op: int,
        run_count: float,
        node: NodeDef,
        inputs: Shapes,
        outputs: Shapes,
        read_sizes: Sizes,
        written_sizes: Sizes,
        adds_bias: bool,
    ) -> None:
        rows.append((op, _kernel(node, inputs, outputs, read_sizes, written_sizes, precisions)))
        times.append(run_count)
        free.append(node.op in _TAKES_NO_TIME or op in plumbing or adds_bias)

    for i, node in enumerate(structure.nodes):
        if library.has_body(node):
            for inner in library.body_ops(node):
                if inner.kernel is not None:
                    rows.append((i, inner.kernel))
                    times.append(inner.times)
                    free.append(False)
                    continue
                shapes_with_types = zip(
                    (*inner.inputs, *inner.outputs), (*inner.input_types, *inner.output_types), strict=True
                )
                tensor_sizes = [prod(shape) * width.get(dtype, 0) or HANDLE_BYTES for shape, dtype in shapes_with_types]
                read_sizes, written_sizes = tensor_sizes[: len(inner.inputs)], tensor_sizes[len(inner.inputs) :]
                add(i, inner.times, inner.node, inner.inputs, inner.outputs, read_sizes, written_sizes, inner.adds_bias)
            continue
        ins, outs = structure.data_inputs[i], structure.output_tensors[i]
        read_sizes = [sizes[t] for t in ins]
        if not is_matrix_product(node.op):  # `x * x` reads one tensor
            read_sizes = [size * (t not in ins[:k]) for k, (t, size) in enumerate(zip(ins, read_sizes, strict=True))]
        written_sizes = [sizes[t] for t in outs]
        if _is_on_host(node, host_tensors.issuperset(ins)):
            host_tensors.update(outs)
            if node.op not in METADATA_OPS:
                rows.append((i, Kernel(metadata=True)))
                times.append(1.0)
                free.append(i in plumbing)
                continue
        adds_bias = node.name in biases
        add(i, 1.0, node, [shapes[t] for t in ins], [shapes[t] for t in outs], read_sizes, written_sizes, adds_bias)
    for guess, names in library.guesses.items():
        message = f"the estimate has loops or branches whose {guess}: {', '.join(names[:3])}"
        warnings.warn(message, GuessedCosts, stacklevel=outer_stacklevel())
    for counted, tensors, error in (
        ("as 1", structure.open_tensors, "small"),
        ("at their largest", structure.bounded_tensors, "large"),
    ):
        producers = (structure.nodes[structure.tensor_producer[t]].name for t in tensors if t not in host_tensors)
        if ops := list(dict.fromkeys(producers)):
            message = (
                f"the estimate counts sizes that depend on data {counted}, in the outputs of {len(ops)} of {structure.n} ops "
                f"({', '.join(ops[:3])}): their times and bytes may be too {error}; a measured profile has those of a run"
            )
            warnings.warn(message, GuessedCosts, stacklevel=outer_stacklevel())
    return work_of(structure.n, rows, times, free)


def _is_on_host(node: NodeDef, has_host_inputs: bool) -> bool:
    """Whether TensorFlow keeps the outputs in host memory: shapes, small constants, and int32 arithmetic on these."""
    import tensorflow as tf

    if node.op in _MAKES_SHAPES:
        return True
    dtype = next((node.attr[key].type for key in ("dtype", "T", "Tparams", "Tidx") if key in node.attr), None)
    if "Random" in node.op:
        return False
    is_constant = node.op == "Const"
    has_inputs = next(data_inputs(node), None) is not None
    return dtype == tf.int32.as_datatype_enum and (is_constant or (has_host_inputs and has_inputs))


def _kernel(
    node: NodeDef, inputs: Shapes, outputs: Shapes, input_bytes: Sizes, output_bytes: Sizes, precisions: dict[int, str]
) -> Kernel:
    if node.op in METADATA_OPS:
        return Kernel(metadata=True)
    number_type = next((node.attr[key].type for key in ("T", "Ta") if key in node.attr), 0)
    precision, is_complex = precisions.get(number_type, "fp32"), number_type in complex_types()
    number_bytes = (2 if is_complex else 1) * PRECISION_BYTES[precision]
    moved_bytes = _moved_bytes(node.op, inputs, input_bytes, output_bytes)
    if node.op in _SORTS_ROWS and inputs[0]:
        row, number_size = inputs[0][-1], input_bytes[0] // max(prod(inputs[0]), 1)
        selected = outputs[0][-1] if node.op.startswith("TopK") else row
        moved_bytes = max(moved_bytes, float(sorting_bytes(node.op, prod(inputs[0]), row, number_size, selected)))
    products = product_shapes(node, inputs, outputs)
    convolution = is_convolution(node.op) and bool(products)
    kernel = Kernel(
        flops=flops(node, inputs, outputs),
        moved_bytes=moved_bytes,
        precision=precision,
        matrix=is_matrix_product(node.op),
        batched=not convolution and any(product.count > 1 for product in products),
        products=products,
        convolution=convolution,
        rows=repeated_rows(node, inputs, number_bytes),
        vector_flops=vector_flops(node, inputs, outputs, number_bytes, precision),
        layout_bytes=layout_bytes(node, inputs, outputs, moved_bytes),
        row_alignment=row_alignment(node, inputs, outputs, number_bytes),
        crossed=has_crossed_operands(node),
        multiprocessor_us=multiprocessor_us(node, inputs, outputs, number_bytes),
        wait_us=wait_us(node, inputs),
    )
    return product_of_complex_numbers(kernel) if is_complex and kernel.matrix else kernel


def _moved_bytes(op: str, inputs: Shapes, input_bytes: Sizes, output_bytes: Sizes) -> float:
    """Returns the bytes read and written: inputs and outputs; only the part for slices; twice for updated variables.

    Sums of chosen rows read one row per index, however large the table is.
    """
    if op == "BiasAddGrad" and len(inputs[0]) > 3:  # waits take all of its time
        return 0.0
    if op in _TOUCHES_PART:
        return float(2 * sum(output_bytes))
    if op.startswith(_IN_PLACE):
        return float(3 * sum(input_bytes))
    table = _TABLE_OF_ROWS.get(op)
    if table is not None and inputs[1] and inputs[table]:
        rows = inputs[1][0] * input_bytes[table] / max(inputs[table][0], 1)
        return float(sum(input_bytes) - input_bytes[table] + rows + sum(output_bytes))
    return float(sum(input_bytes) + sum(output_bytes))
