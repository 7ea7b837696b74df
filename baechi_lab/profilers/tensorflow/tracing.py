"""`bl.trace`: turns a training step in TensorFlow into a `Step`, which holds no framework objects.

TensorFlow traces the function. Then calls are inlined, captured variables become handle ops with their current values beside
the graph, other captured values constants, ops that only tracing added are removed (see `simplification`), and shapes are
inferred for the example inputs. The result runs in a plain `tf.compat.v1.Session`: initialize each variable of
`step.variables` with its value, then run `step.outputs` and `step.updates` together.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...checks import check_text
from ...errors import InvalidInput, in_short
from ...graph.step import Source, Step, TensorSpec
from ...workers.tensorflow_import import load_tensorflow
from .captured_variables import bind_captures, variables_of
from .inlining import inline, used_functions
from .keras_step import is_keras_model, keras_objects, refuse_replicas, training_step
from .nodes import split
from .optimizer_slots import keras_slots, optimizer_slots
from .recurrent_layers import fused_layers, mark_fused_loops
from .shapes import SHAPES, lacks_shapes, specs, with_shapes
from .simplification import simplify

if TYPE_CHECKING:
    from tensorflow import Tensor, Variable
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef
    from tensorflow.types.experimental import ConcreteFunction


_KEPT_HINTS = ("_lower_using_switch_merge", SHAPES)

_ANSI = re.compile(r"\x1b\[\d+m")
_IN_KERAS = "Exception encountered when calling "

_BOUND_TO_PROCESS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})


def trace(fn: object, *example_inputs: object, name: str | None = None) -> Step:
    """Traces one training step.

    Args:
        fn: a `tf.function`, a plain Python function of tensors, or a compiled `keras.Model`. A model's step is
            forward pass, loss, gradients and the optimizer's update, and returns the loss of the batch.
        example_inputs: one value per input (arrays, tensors, `tf.TensorSpec` with known sizes, or nests of them; a
            ragged or sparse tensor becomes one input for each of its parts); for a model `x, y[, sample_weight]`, or
            the batch as one tuple. Python numbers, texts and None become part of the graph, as tf.function treats
            them. The sizes fix the batch for which costs are known.
        name: name of the step; default the function's or model's.

    Returns:
        a Step whose `graph_def` is inlined and in topological order. Inputs are its Placeholders, `outputs` the
        tensors that the function returned (flattened, and called by their keys where it returned a dict), `updates`
        the ops to run for their side effects, `output_names` the keys of a dict (`loss`, `metrics/accuracy`). `info` holds
        `ops`, `trace_seconds` and, of these, `framework_seconds`: TensorFlow's own tracing of the Python code.

    Raises:
        InvalidInput: the function cannot be traced, the model is not compiled, or the step has no output and no update.

    >>> import numpy as np, tensorflow as tf
    >>> w = tf.Variable(2.0, name="w")
    >>> step = trace(lambda x: w.assign_sub(0.5 * x), np.float32(1.0), name="halve")
    >>> step.name, [v.name for v in step.variables], [float(v) for v in step.initial_values]
    ('halve', ['w'], [2.0])
    """
    if name is not None:
        check_text("name", name)
    load_tensorflow()
    start_seconds = time.perf_counter()
    label = name or _step_label(fn)
    if not callable(fn):
        raise InvalidInput(
            f"cannot trace {in_short(fn, 200)}; give a function, a tf.function or a compiled keras.Model"
        )
    function: Any = fn
    if is_keras_model(fn) and len(example_inputs) == 1 and isinstance(example_inputs[0], (tuple, list)):
        example_inputs = tuple(example_inputs[0])  # the batch (x, y)
    examples = [as_tensors(x, label) for x in example_inputs]
    if is_keras_model(fn):
        try:
            function = training_step(fn, tuple(examples))
        except InvalidInput:
            raise
        except Exception as error:  # an unbuilt model runs on the batch and may raise anything
            raise InvalidInput(f"step {label!r} cannot be traced: {_reason(error)}") from error
    refuse_replicas(keras_objects(fn), label)
    call_time = time.perf_counter()
    concrete = _concrete_function(function, examples, label)
    framework = time.perf_counter() - call_time
    variables = variables_of(concrete)
    # Again: a model with several outputs makes the means of its losses when it is traced.
    step = _step_from(concrete, variables, leaves(examples), label, keras_objects(fn))
    seconds = {"trace_seconds": time.perf_counter() - start_seconds, "framework_seconds": framework}
    source = Source(fn, tuple(examples), tuple(variables))
    return replace(step, info={**step.info, **seconds}, source=lambda: source)


def _step_label(fn: Any) -> str:
    if is_keras_model(fn):
        return str(fn.name)
    label = getattr(fn, "__name__", None) or getattr(getattr(fn, "python_function", None), "__name__", None)
    return str(label) if label and label != "<lambda>" else "step"


def _concrete_function(function: object, examples: list[object], label: str) -> ConcreteFunction:
    import tensorflow as tf

    if hasattr(function, "captured_inputs") and hasattr(function, "graph"):
        return function
    traceable: Any = function if hasattr(function, "get_concrete_function") else tf.function(function)
    try:
        concrete = traceable.get_concrete_function(*examples)
        if not all(tensor.shape.is_fully_defined() for tensor in concrete.inputs if tensor.dtype != tf.resource):
            # A signature with open sizes, which the bodies of loops would keep.
            concrete = tf.function(traceable.python_function).get_concrete_function(*examples)
        return concrete
    except Exception as error:  # the step is the caller's code: it may raise anything while traced
        raise InvalidInput(f"step {label!r} cannot be traced: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """Returns the sentence of an error: AutoGraph puts it after the user's source lines, Keras below a heading."""
    kind = type(error).__name__
    lines = [line.strip() for line in _ANSI.sub("", str(error)).splitlines() if line.strip()] or [""]
    error_lines = [k for k, line in enumerate(lines) if line.startswith(kind + ": ")]
    if lines[0].startswith("in user code") and not error_lines:
        error_lines = [len(lines) - 1]  # an error type that AutoGraph does not know: it keeps the original at the end
    at = error_lines[-1] if error_lines else 0
    reason = lines[at] if error_lines else f"{kind}: {lines[0]}"
    if _IN_KERAS in reason and at + 1 < len(lines):
        reason = f"{reason.removesuffix('.')}: {lines[at + 1]}"
    return reason.split(". Received args")[0]


def _step_from(
    concrete: ConcreteFunction, all_variables: list[Variable], leaves: list[Tensor], label: str, objects: list[Any]
) -> Step:
    """Makes a Step of a traced function: sized inputs, inlined calls, variables as ops of the graph, no op without effect."""
    graph = concrete.graph
    graph_def = graph.as_graph_def(add_shapes=True)
    variable_names: dict[int, str] = {}  # paths of Keras variables, and slot -> variable, by the `id` of their handles
    slots_of: dict[int, int] = {}
    for item in objects:
        slots_of.update(keras_slots(item))
        for variable in item.variables:
            variable_names.setdefault(id(variable.value.handle), variable.path)
    variables = bind_captures(graph_def, concrete, all_variables, variable_names)
    placeholders = [t.op.name for t in concrete.inputs[: len(concrete.inputs) - len(concrete.captured_inputs)]]
    # Every input Placeholder gets the size of its example.
    if len(placeholders) != len(leaves):
        raise InvalidInput(f"step {label!r} takes {len(placeholders)} tensors; {len(leaves)} example inputs were given")
    node_of_name = {n.name: n for n in graph_def.node}
    has_sizes = False
    for name, example in zip(placeholders, leaves, strict=True):
        shape, placeholder_shape = example.shape.as_proto(), node_of_name[name].attr["shape"].shape
        has_sizes |= placeholder_shape != shape
        placeholder_shape.CopyFrom(shape)
    outputs = [t.name for t in concrete.outputs if t.dtype.name not in ("resource", "variant")]
    effects = [op.name for op in graph.control_outputs]
    graph_def = inline(graph_def, list(dict.fromkeys([*outputs, *effects])))
    everything = [*graph_def.node, *(n for f in graph_def.library.function for n in f.node_def)]
    bad = next((n for n in everything if n.op in _BOUND_TO_PROCESS), None)
    if bad is not None:
        raise InvalidInput(
            f"step {label!r} calls Python code while it runs (op {bad.name!r}, from tf.py_function or "
            "tf.numpy_function), which no other device or process can run; use TensorFlow ops"
        )
    nodes, outputs, updates = simplify(list(graph_def.node), placeholders, outputs, effects)
    outputs, output_names = name_outputs(nodes, outputs, concrete.structured_outputs)
    if not outputs and not updates:
        raise InvalidInput(f"step {label!r} returns no tensor and updates no variable; there is nothing to run")
    graph_without_hints = _without_hints(graph_def, nodes)
    graph_without_hints = (
        with_shapes(graph_without_hints) if has_sizes or lacks_shapes(graph_without_hints) else graph_without_hints
    )
    weights = {id(layer.cell.recurrent_kernel.value.handle) for layer in fused_layers(objects)}
    mark_fused_loops(graph_without_hints, {v.name for v in variables if id(v.variable.handle) in weights})
    used = {n.name for n in graph_without_hints.node}
    used_variables = [v for v in variables if v.name in used]
    names = {id(v.variable.handle): v.name for v in used_variables}
    declared_slots = {names[s]: names[v] for s, v in slots_of.items() if s in names and v in names}
    return Step(
        name=label,
        graph_def=graph_without_hints.SerializeToString(deterministic=True),
        inputs=tuple(
            TensorSpec(p + ":0", x.dtype.name, tuple(x.shape)) for p, x in zip(placeholders, leaves, strict=True)
        ),
        outputs=specs(graph_without_hints, outputs),
        example_inputs=tuple(np.asarray(x.numpy()) for x in leaves),
        variables=tuple(TensorSpec(v.name, v.dtype, v.shape) for v in used_variables),
        initial_values=tuple(v.value for v in used_variables),
        slots=optimizer_slots(graph_without_hints, {v.name: v.shape for v in used_variables}, declared_slots),
        updates=tuple(updates),
        output_names=tuple(output_names),
        info={"ops": len(graph_without_hints.node)},
    )


def _without_hints(graph_def: GraphDef, nodes: list[NodeDef]) -> GraphDef:
    """Returns a GraphDef of `nodes` without devices and without colocation hints on removed ops."""
    import tensorflow as tf

    new_graph_def = tf.compat.v1.GraphDef()
    new_graph_def.versions.CopyFrom(graph_def.versions)
    names = {n.name for n in nodes}
    for node in nodes:
        node.device = ""
        hints = [c for c in node.attr["_class"].list.s if c[5:].decode() in names] if "_class" in node.attr else []
        for key in [k for k in node.attr if k.startswith("_") and k not in _KEPT_HINTS]:
            del node.attr[key]
        if hints:
            node.attr["_class"].list.s.extend(hints)
        new_graph_def.node.append(node)
    new_graph_def.library.function.extend(used_functions(graph_def, nodes))
    for function in new_graph_def.library.function:
        for node in function.node_def:
            node.device = ""
    return new_graph_def


def as_tensors(value: object, label: str) -> Any:
    """Replaces arrays, pandas tables and tensor specs by tensors, also within nests; Python values stay as they are.

    Args:
        value: one example input of the step `label`.

    Raises:
        InvalidInput: `value` has an open size or objects that are neither numbers nor texts, or is a variable, a dataset or
            an iterator.

    >>> as_tensors({"text": np.array(["a", "bc"], dtype=object)}, "step")["text"].dtype.name
    'string'
    """
    import tensorflow as tf

    if isinstance(value, dict):
        return {k: as_tensors(v, label) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        elements = [as_tensors(v, label) for v in value]
        return type(value)(*elements) if hasattr(value, "_fields") else type(value)(elements)
    if isinstance(value, tf.TensorSpec):
        if not value.shape.is_fully_defined():
            raise InvalidInput(f"example input {value} leaves a size open; costs need the sizes of a real batch")
        return tf.zeros(value.shape, value.dtype) if value.dtype != tf.string else tf.fill(value.shape, "")
    if hasattr(value, "assign_add"):
        kind = type(value).__name__
        raise InvalidInput(
            f"an example input of step {label!r} is a {kind}; let the step read it, and hand over what is fed"
        )
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "Mm":
        raise InvalidInput(
            f"an example input of step {label!r} holds {value.dtype} values, which no tensor has; give numbers"
        )
    # What tf.function converts to a tensor: NumPy's arrays, a pandas column or table, an array of another framework.
    if hasattr(value, "__array__") and not (tf.is_tensor(value) or isinstance(value, type)):
        array = np.asarray(value)
        if array.dtype.kind == "O" and not all(isinstance(x, (str, bytes)) for x in array.reshape(-1)):
            raise InvalidInput(
                f"an example input of step {label!r} is an array of Python objects; give numbers or texts, and for rows of "
                "different lengths a tf.ragged.constant"
            )
        return tf.constant(array)
    if isinstance(value, (tf.data.Dataset, Iterator)):
        first = "next(iter(dataset))" if isinstance(value, tf.data.Dataset) else "next(iterator)"
        raise InvalidInput(
            f"an example input of step {label!r} is a {type(value).__name__}; let the step take one batch, and give the "
            f"first one, {first}"
        )
    if hasattr(value, "tocoo"):
        kind = type(value).__name__
        raise InvalidInput(f"an example input of step {label!r} is a {kind} of SciPy; give a tf.sparse.SparseTensor")
    return value


def leaves(examples: object) -> list[Tensor]:
    """Returns the tensors of a nest in TensorFlow's order; ragged and sparse tensors as their components."""
    import tensorflow as tf

    return [x for x in tf.nest.flatten(examples, expand_composites=True) if tf.is_tensor(x)]


def name_outputs(nodes: list[NodeDef], outputs: list[str], structure: object) -> tuple[list[str], tuple[str, ...]]:
    """Renames the Identity that tracing adds for an output to the key under which the output is returned.

    Args:
        nodes: NodeDefs, changed in place.
        outputs: references like `"Identity:0"`.
        structure: the function's result: dicts and tuples of symbolic tensors.

    Returns:
        the outputs' references, and their names (`loss`, or `metrics/accuracy` for nested ones); no names if the function
        returned no dict. An op that already has the name keeps it.
    """
    names = list(_paths(structure, ())) if isinstance(structure, dict) else []
    if len(names) != len(outputs) or len(set(outputs)) != len(outputs):
        return outputs, ()
    used_names = {n.name for n in nodes}
    table = {n.name: n for n in nodes}
    new_name: dict[str, str] = {}
    for reference, name in zip(outputs, names, strict=True):
        identity_name = split(reference)[0]
        legal = re.sub(r"[^A-Za-z0-9_.\-/]", "_", name)
        if table[identity_name].op == "Identity" and legal not in used_names and re.match(r"[A-Za-z0-9.]", legal):
            used_names.add(legal)
            new_name[identity_name] = legal
    for node in nodes:
        node.name = new_name.get(node.name, node.name)
        for k, reference in enumerate(node.input):
            node.input[k] = rename_reference(reference, new_name)
    return [rename_reference(reference, new_name) for reference in outputs], tuple(names)


def rename_reference(reference: str, new_name: Mapping[str, str]) -> str:
    """Returns a reference such as `"op:0"` or `"^op"` to the op's new name, if it has one."""
    waits = "^" if reference.startswith("^") else ""
    source, colon, index = reference.removeprefix("^").partition(":")
    return waits + new_name.get(source, source) + colon + index


def _paths(value: object, above: tuple[str, ...]) -> Iterator[str]:
    """Yields one path per tensor in TensorFlow's order of flattening, with the keys of dicts sorted."""
    import tensorflow as tf

    if isinstance(value, dict):
        for key in sorted(value):
            yield from _paths(value[key], (*above, str(key)))
    elif isinstance(value, (list, tuple)):
        for k, element in enumerate(value):
            yield from _paths(element, (*above, str(k)))
    else:
        for _ in tf.nest.flatten(value, expand_composites=True):
            if value is not None:
                yield "/".join(above)
