"""`RankExperts`: a mixture of experts on one rank, whose work follows from shapes alone.

Which tokens an expert gets depends on values, which meta tensors do not have. Here tokens are spread evenly, as in `bl.layouts`:
every expert gets `tokens * experts_per_token / experts` rows of each rank. Experts are divided over `ep` ranks, which send them
their rows by all-to-all; their inner width is divided over `tp` ranks, which add up what they get.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.autograd.function import FunctionCtx

from ...errors import InvalidInput


class _SumForward(torch.autograd.Function):
    """Adds up over ranks; gradients pass as they are."""

    @staticmethod
    def forward(context: FunctionCtx, tensor: torch.Tensor, group: str) -> torch.Tensor:
        return functional.wait_tensor(functional.all_reduce(tensor, "sum", group))

    @staticmethod
    def backward(context: FunctionCtx, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


class _SumBackward(torch.autograd.Function):
    """Passes tensors as they are; gradients are added up over ranks."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, group: str) -> torch.Tensor:
        context.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return functional.wait_tensor(functional.all_reduce(gradients[0], "sum", context.group)), None


class RankExperts(nn.Module):
    """A rank's share of experts of Hugging Face models, in whose place it stands.

    Args:
        name: of the layer, for messages.
        experts: the layer, with `gate_up_proj` [experts, 2 * width, hidden] and `down_proj` [experts, hidden, width].
        tp, ep: ranks that divide the width and the experts.
        tp_group, ep_group: names of their process groups; empty for one rank.

    Raises:
        InvalidInput: another kind of layer; degrees that do not divide.
    """

    def __init__(self, name: str, experts: nn.Module, tp: int, ep: int, tp_group: str, ep_group: str) -> None:
        super().__init__()
        parameters = dict(experts.named_parameters())
        up, down = parameters.get("gate_up_proj"), parameters.get("down_proj")
        if (
            up is None
            or down is None
            or len(parameters) != 2
            or up.shape != (len(up), 2 * down.shape[2], down.shape[1])
        ):
            raise InvalidInput(
                f"layer {name!r} is a mixture of experts, but not one of Mixtral's kind; bl.layouts simulates it from the "
                "model's configuration"
            )
        self.experts, self.hidden, width = down.shape
        if self.experts % ep:
            raise InvalidInput(f"ep is {ep}; it must divide the experts of layer {name!r}, which are {self.experts}")
        if width % tp:
            raise InvalidInput(
                f"tp is {tp}; it must divide the width of the experts of layer {name!r}, which is {width}"
            )
        self.ep, self.tp_group, self.ep_group = ep, tp_group, ep_group
        shapes = (self.experts // ep, 2 * width // tp, self.hidden), (self.experts // ep, self.hidden, width // tp)
        self.gate_up_proj, self.down_proj = (
            nn.Parameter(torch.empty(shape, device="meta", dtype=up.dtype)) for shape in shapes
        )
        self.act_fn = experts.act_fn

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        if self.tp_group:
            hidden_states = _SumBackward.apply(hidden_states, self.tp_group)
        rows = -(-top_k_index.numel() // self.experts)  # of this rank for each expert
        order = torch.empty(self.experts * rows, dtype=torch.int64, device=hidden_states.device)
        routed_states = self._exchange(hidden_states.index_select(0, order))
        routed_states = (
            routed_states.view(self.ep, -1, rows, self.hidden).transpose(0, 1).reshape(-1, self.ep * rows, self.hidden)
        )
        gate, up = torch.bmm(routed_states, self.gate_up_proj.transpose(1, 2)).chunk(2, dim=-1)
        routed_states = torch.bmm(self.act_fn(gate) * up, self.down_proj.transpose(1, 2))
        routed_states = routed_states.view(-1, self.ep, rows, self.hidden).transpose(0, 1).reshape(-1, self.hidden)
        routed_states = self._exchange(routed_states) * top_k_weights.reshape(-1, 1).index_select(0, order)
        outputs = torch.zeros_like(hidden_states).index_add(0, order, routed_states.to(hidden_states.dtype))
        return _SumForward.apply(outputs, self.tp_group) if self.tp_group else outputs

    def _exchange(self, rows: torch.Tensor) -> torch.Tensor:
        """Sends each of the ranks that divide the experts its equal part of the rows (all-to-all)."""
        if not self.ep_group:
            return rows
        return functional.all_to_all_single_autograd(rows, None, None, self.ep_group)
