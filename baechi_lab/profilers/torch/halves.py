"""The two halves of a backward pass: the gradients of a call's inputs, and those of its parameters, timed apart.

Idea: right after a call has run, its own piece of the autograd graph is run backwards twice, once for the inputs and once
for the parameters, as a pipeline does that puts the gradients of weights off (zero-bubble schedules). Where both come from
one kernel (an LSTM), each half takes as long as the whole. A call without parameters, or without gradients of its
inputs, has no halves.

Source: Qi et al. 2023, arXiv:2401.10241, section 2.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from ...torch.records import Trace
from ...torch.runtime.context import in_backward, kept_activations
from ...torch.runtime.intercept import Frame, Handler
from ...torch.runtime.tree import tensors


class HalvesTimer(Handler):
    """The handler that times the halves: microseconds summed over the forwards that it has measured, per call.

    `split` says which calls have halves; `clock` gives microseconds.
    """

    def __init__(self, found: Trace, clock: Callable[[], float]):
        self.index, self.clock = found.index, clock
        self.inputs_us, self.weights_us = np.zeros(len(found.calls)), np.zeros(len(found.calls))
        self.split = np.zeros(len(found.calls), dtype=np.bool_)
        self.measuring = False

    def call(
        self, frame: Frame, key: str, run: Callable[..., Any], args: Any, kwargs: Any, module: nn.Module | None
    ) -> Any:
        with kept_activations():
            outputs = run(*args, **kwargs)
        op = self.index.get(key, -1)
        if op < 0 or not self.measuring or in_backward() or not torch.is_grad_enabled():
            return outputs
        taken = [t for t in tensors((args, kwargs)) if t.requires_grad]
        weights = [p for p in (module.parameters() if module is not None else ()) if p.requires_grad]
        weights += [t for t in taken if isinstance(t, nn.Parameter) and not any(t is p for p in weights)]
        inputs = [t for t in taken if not isinstance(t, nn.Parameter)]
        made = [t for t in tensors(outputs) if t.requires_grad and t.grad_fn is not None]
        if inputs and weights and made:
            self.split[op] = True
            self.inputs_us[op] += self._timed(made, inputs)
            self.weights_us[op] += self._timed(made, weights)
        return outputs

    def _timed(self, made: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> float:
        ones = [torch.ones_like(t) for t in made]
        start = self.clock()
        torch.autograd.grad(made, wanted, ones, retain_graph=True, allow_unused=True)
        return self.clock() - start
