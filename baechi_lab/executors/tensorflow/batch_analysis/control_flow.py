"""Rules for conditionals and loops: their bodies are analyzed with the values of the arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING

import numpy as np

from ....profilers.tensorflow.function_bodies import Library, body_graph, is_loop_invariant, tensor_specs
from ....profilers.tensorflow.nodes import called_functions, data_inputs, output_types
from .batch_values import (
    CARRIES_VALUES,
    READS_SIZES,
    REDUCES_AXIS,
    BatchValues,
    Samples,
    Tensor,
    Total,
    Value,
    ancestors,
    is_float,
    merge_values,
    without_counts,
)
from .op_inputs import OpInputs
from .op_kinds import REDUCTIONS, VARIANT

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef


class ControlFlowRules(OpInputs):
    """Values of outputs of conditionals and loops."""

    def value_of_control_flow(self, output: int) -> Value:
        """Returns the value of an output of a loop or conditional."""
        if self._results is None:
            if not self.node.op.endswith("While"):
                branches = [self._branch(name) for name in called_functions(self.node)]
                # All micro-batches choose the branch of the undivided batch if its inputs alone tell which.
                if self._is_known_of_batch(0):
                    self.batch_values.shared_totals[self.inputs[0]] = 0
                elif self.values[0] is not None:
                    self.report_problem("chooses what to compute by a value of the batch", None)
                self._results = [self._of_branches(values, k) for k, values in enumerate(zip(*branches, strict=True))]
            elif self._loops_over_samples():
                self._results = self._loop_over_samples()
            else:
                self._results = self._loop()
        return self._results[output]

    def _branch(self, name: str) -> list[Value]:
        """Returns the values of the outputs of a branch of a conditional, whose problems are those of the conditional."""
        body = self._analyze_body(name, self.inputs[1:], self.values[1:])  # the first input is the condition
        for tensor in body.shared_arguments():
            outer_tensor = self.inputs[1:][body.arguments.index(tensor)]
            self.batch_values.shared_totals[outer_tensor] = body.values.shared_totals[tensor, 0]
        self._add_problems(body)
        return [body.values.of(tensor) for tensor in body.results]

    def _analyze_body(self, name: str, inputs: Sequence[Tensor], values: Sequence[Value]) -> Body:
        """Returns the analysis of a body whose arguments are `inputs` and have these values."""
        batch_values = self.batch_values
        functions = {function.signature.name: function for function in batch_values.graph_def.library.function}
        if name not in self._graphs:
            self._graphs[name] = (*body_graph(functions[name], batch_values.graph_def), self._undivided_body(name))
        graph, results, undivided_graph = self._graphs[name]
        inner = BatchValues(
            graph, batch_values.micro_batches, batch=batch_values.batch, undivided_graph=undivided_graph
        )
        arguments = [argument.name for argument in functions[name].signature.input_arg]
        for argument, tensor, value in zip(arguments, inputs, values, strict=True):
            if value is not None:
                inner.values[argument, 0] = value
            if tensor[0] in batch_values.trained_ops or tensor in self._trained_arguments:
                inner.trained_ops.add(argument)
        for node in graph.node:
            type(self)(inner, inner.nodes[node.name], {}).apply()
        return Body(inner, arguments, results)

    def _add_problems(self, body: Body) -> None:
        for reason in body.values.problems.values():
            self.report_problem(reason, None)
        if body.reads_whole_batch():
            self.report_problem("reads a value of the whole batch for each of its samples", None)
        for reason in body.values.unclear.values():
            self.batch_values.unclear[self.node.name] = reason

    def _undivided_body(self, name: str) -> GraphDef | None:
        """Returns the body of the undivided batch that corresponds to branch or body `name`; None if it is unknown."""
        undivided_values = self.batch_values.undivided_values
        node = None if undivided_values is None else undivided_values.nodes.get(self.node.name)
        if undivided_values is None or node is None or node.op != self.node.op:
            return None
        branch = list(called_functions(node))[list(called_functions(self.node)).index(name)]
        functions = {function.signature.name: function for function in undivided_values.graph_def.library.function}
        return body_graph(functions[branch], undivided_values.graph_def)[0]

    def _is_known_of_batch(self, k: int) -> bool:
        """Whether all micro-batches can read input `k` of the undivided batch, which its inputs alone tell."""
        value = self.values[k]
        return isinstance(value, Total) and value.share == 0 and self.inputs[k][0] not in self.batch_values.trained_ops

    def _of_branches(self, values: Sequence[Value], output: int) -> Value:
        """Returns the value of an output of a conditional whose branches have these values."""
        is_scalar = self.is_scalar(output)
        if all(value is None for value in values) and self.values[0] is not None:
            return Total(None, exact=False) if is_scalar else Samples(None)
        return reduce(partial(merge_values, is_scalar=is_scalar), values)

    def _loop(self) -> list[Value]:
        """Returns the values of the outputs of a loop: of its arguments, joined with what its iterations make of them.

        Iterations are analyzed until no value changes any more, which takes a few of them: a value only becomes less known.
        """
        names = [self.node.attr[key].func.name for key in ("body", "cond")]
        function = Library(self.batch_values.graph_def).functions[names[0]]
        is_constant = [is_loop_invariant(function, k) for k in range(len(self.inputs))]
        values = self.values
        while True:
            body = self._analyze_body(names[0], self.inputs, values)
            results = [body.values.of(tensor) for tensor in body.results]
            joined_values = [
                self._loop_value(k, before, after)
                for k, (before, after) in enumerate(zip(values, results, strict=True))
            ]
            trained_inputs = {
                t for t, (name, _) in zip(self.inputs, body.results, strict=True) if name in body.values.trained_ops
            }
            if (
                list(map(without_counts, joined_values)) == list(map(without_counts, values))
                and trained_inputs <= self._trained_arguments
            ):
                break
            values, self._trained_arguments = joined_values, self._trained_arguments | trained_inputs
        self._add_problems(body)
        condition = self._analyze_body(names[1], self.inputs, values)
        self._add_problems(condition)
        if condition.values.of(condition.results[0]) is not None:
            nodes = condition.values.nodes
            leading = ancestors(nodes, list(nodes), {condition.results[0][0]})
            at = [k for k, name in enumerate(condition.arguments) if name in leading and values[k] is not None]
            if all(is_constant[k] and self._is_known_of_batch(k) for k in at):
                self.batch_values.shared_totals.update({self.inputs[k]: 0 for k in at})
            else:
                self.report_problem("chooses its number of iterations by a value of the batch", None)
        for name in body.shared_arguments():
            k = body.arguments.index(name)
            if is_constant[k]:
                self.batch_values.shared_totals[self.inputs[k]] = body.values.shared_totals[name, 0]
            else:
                self.report_problem("reads a value of the whole batch for each of its samples", None)
        iterations = Library(self.batch_values.graph_def).iterations(self.node) or 1
        return [
            replace(value, counts=value.counts | {count * iterations for count in value.counts}, share=None)
            if isinstance(value, Total)
            else value
            for value in values
        ]

    def _loop_value(self, k: int, before: Value, after: Value) -> Value:
        """Returns the value of an argument of a loop whose iterations turn `before` into `after`."""
        if before is None and isinstance(after, Total) and after.power == 1:
            initial = self.batch_values.constant(self.inputs[k])
            if initial is not None and not np.any(initial):
                return after  # a sum that begins at 0
        return merge_values(before, after, self.is_scalar(k))

    def _loops_over_samples(self) -> bool:
        """Whether a loop takes one sample after the other from a list."""
        return any(
            isinstance(value, Samples) and value.axis == 0 and kind == VARIANT
            for value, kind in zip(self.values, output_types(self.node), strict=True)
        )

    def _loop_over_samples(self) -> list[Value]:
        """Returns the values of the outputs of a loop whose iterations are those of single samples. The body is not analyzed."""
        if reason := self._reason_for_mixing():
            self.report_problem(reason, None)
        self.share_totals()
        results: list[Value] = []
        for k, kind in enumerate(output_types(self.node)):
            if self.values[k] is None and not is_float(kind) and kind != VARIANT:
                results.append(None)
            elif kind == VARIANT:
                results.append(Samples(0))
            else:
                results.append(Total(None, exact=False) if self.is_scalar(k) else Samples(None))
        return results

    def _reason_for_mixing(self) -> str | None:
        """Returns how a loop may combine the samples: by a size that it reads, a reduction, or what its iterations carry."""
        if self._iterations_read_sizes():
            return READS_SIZES
        library, batch = Library(self.batch_values.graph_def), self.batch_values.batch
        body = library.functions[self.node.attr["body"].func.name]
        if any(is_float(kind) and not is_loop_invariant(body, k) for k, kind in enumerate(output_types(self.node))):
            return CARRIES_VALUES
        shapes = {reference: shape for reference, (shape, _) in tensor_specs(body).items()}
        for node in body.node_def if batch > 1 else ():
            batch_axes = node.op in REDUCTIONS and shapes.get(node.input[0], ()).count(batch)
            if batch_axes and shapes.get(f"{node.name}:output:0", ()).count(batch) < batch_axes:
                return REDUCES_AXIS
        return None

    def _iterations_read_sizes(self) -> bool:
        """Whether floats that the iterations of a loop read are other ones for the undivided batch."""
        sizes = (isinstance(v, Total) and v.share == 0 and v.power != 0 for v in self.values)
        if any(is_size and is_float(kind) for is_size, kind in zip(sizes, output_types(self.node), strict=True)):
            return True
        name = self.node.attr["body"].func.name
        undivided_graph, graph_def = self._undivided_body(name), self.batch_values.graph_def
        if undivided_graph is None:
            return False
        functions = {function.signature.name: function for function in graph_def.library.function}
        graph, _ = body_graph(functions[name], graph_def)
        inner = BatchValues(graph, self.batch_values.micro_batches, undivided_graph=undivided_graph)
        constants = [node for node in graph.node if node.op == "Const" and is_float(node.attr["dtype"].type)]
        return any(inner.of_batch_size((node.name, 0)) is not None for node in constants) or bool(inner.positions)


@dataclass(frozen=True)
class Body:
    """The analysis of a body of a loop or conditional: names of its arguments, and the tensors that it returns."""

    values: BatchValues
    arguments: list[str]
    results: list[Tensor]

    def shared_arguments(self) -> list[str]:
        """Returns the arguments of which every micro-batch reads its share of the undivided batch's."""
        return [name for name in self.arguments if (name, 0) in self.values.shared_totals]

    def reads_whole_batch(self) -> bool:
        """Whether an op reads a value of the undivided batch that is computed in the body, so that no micro-batch knows it.

        The number of samples in the scale of a total is that of the micro-batch, as the total is.
        """
        values = self.values
        varying = {name for name in self.arguments if values.of((name, 0)) is not None}
        inside = values.shared_totals.keys() - {(name, 0) for name in self.arguments}
        leading = ancestors(values.nodes, list(values.nodes), {name for name, _ in inside})
        if varying & leading:
            return True
        inputs = [set(data_inputs(node)) for node in values.nodes.values()]
        return any(isinstance(values.of(tensor), Samples) for read in inputs if read & inside for tensor in read)
