"""`LayoutRequest`: a layout to write, with the model and batch that it is for; the checks that all formats share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import InvalidInput
from ...graph.layout import Layout
from ...parallel.layouts import why_illegal
from ...parallel.transformer import Transformer

PRECISIONS = ("mixed-bf16", "float32")


@dataclass(frozen=True)
class LayoutRequest:
    """A layout to write: for `transformer`, whose configuration has `fields`; `global_batch` sequences a step."""

    layout: Layout
    transformer: Transformer
    fields: Mapping[str, object]
    global_batch: int
    sequence_length: int
    per_machine: int
    precision: str

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one copy in a step."""
        return self.global_batch // (self.layout.dp * self.layout.micro_batch)

    @property
    def machines(self) -> int:
        return -(-self.layout.devices // self.per_machine)

    @property
    def processes_per_machine(self) -> int:
        return min(self.per_machine, self.layout.devices)

    @property
    def model_type(self) -> str:
        """The architecture's name in the configuration."""
        return str(self.fields.get("model_type", ""))

    @property
    def stage_layers(self) -> tuple[int, ...]:
        """Returns the layers of every pipeline stage; without a given division, the first stages have one more if necessary."""
        if self.layout.stage_layers is not None:
            return self.layout.stage_layers
        stages, layers = self.layout.stages, self.transformer.layers
        return tuple(layers // stages + (k < layers % stages) for k in range(stages))

    def check(self) -> None:
        """Rejects a batch or model that the layout does not divide.

        Raises:
            InvalidInput: such a batch or model.
        """
        layout = self.layout
        reason = why_illegal(self.transformer, layout, layout.devices, self.global_batch, self.sequence_length)
        if reason:
            raise InvalidInput(reason)
        if layout.devices > self.per_machine and layout.devices % self.per_machine:
            raise InvalidInput(
                f"the layout has {layout.devices} devices; above one machine they must be a multiple of per_machine, which is "
                f"{self.per_machine}"
            )

    def uneven_pieces(self) -> list[str]:
        """Returns a sentence if the early and the late piece of the sequence on every device are not equally long."""
        pieces = 2 * self.layout.cp
        if self.layout.cp == 1 or self.sequence_length % pieces == 0:
            return []
        return [f"sequence_length is {self.sequence_length}; context parallelism needs a multiple of {pieces} there"]
