"""Times the halves of a backward pass separately: gradients of a call's inputs, and gradients of its parameters.

Idea: right after a call, its part of the autograd graph is run backwards twice, once for the inputs and once for the
parameters, as in pipelines that postpone the gradients of weights (zero-bubble schedules). If one kernel makes both (an LSTM),
each half takes as long as the whole. A call without parameters, or without gradients of its inputs, has no halves.
Source: Qi et al. 2023, arXiv:2401.10241, section 2.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from ...torch_runtime.context import in_backward, kept_activations
from ...torch_runtime.intercept import Frame, Handler
from ...torch_runtime.tree import Args, Function, Kwargs, tensors
from ...torch_steps.records import Trace


class HalvesTimer(Handler):
    """The handler that times the halves, in microseconds per call summed over the measured forward passes.

    `split` marks calls that have halves; `clock` returns microseconds.
    """

    def __init__(self, trace: Trace, clock: Callable[[], float]):
        self.index, self.clock = trace.index, clock
        self.inputs_us, self.weights_us = np.zeros(len(trace.calls)), np.zeros(len(trace.calls))
        self.split = np.zeros(len(trace.calls), dtype=np.bool_)
        self.measuring = False

    def call(
        self, frame: Frame, key: str, run: Function, args: Args, kwargs: Kwargs, module: nn.Module | None
    ) -> object:
        with kept_activations():
            outputs = run(*args, **kwargs)
        op = self.index.get(key, -1)
        if op < 0 or not self.measuring or in_backward() or not torch.is_grad_enabled():
            return outputs
        arguments = [t for t in tensors((args, kwargs)) if t.requires_grad]
        weights = [p for p in (module.parameters() if module is not None else ()) if p.requires_grad]
        weights += [t for t in arguments if isinstance(t, nn.Parameter) and not any(t is p for p in weights)]
        inputs = [t for t in arguments if not isinstance(t, nn.Parameter)]
        gradient_roots = [t for t in tensors(outputs) if t.requires_grad and t.grad_fn is not None]
        if inputs and weights and gradient_roots:
            self.split[op] = True
            self.inputs_us[op] += self._time_gradients(gradient_roots, inputs)
            self.weights_us[op] += self._time_gradients(gradient_roots, weights)
        return outputs

    def _time_gradients(self, roots: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> float:
        ones = [torch.ones_like(t) for t in roots]
        start = self.clock()
        torch.autograd.grad(roots, targets, ones, retain_graph=True, allow_unused=True)
        return self.clock() - start
