"""`LayoutRequest`: a layout to write, with the model and batch that it is for; the checks that all formats share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import InvalidInput
from ...graph.layout import Layout
from ...parallel.layout_stages import stage_blocks
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
    reduce_precision: str = "float32"
    overlap_products: bool = False

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
        """Layers of every pipeline stage, as they are simulated."""
        return stage_blocks(self.layout, self.transformer.layers)

    def check(self) -> None:
        """Raises `InvalidInput` for a batch or model that the layout does not divide."""
        layout = self.layout
        reason = why_illegal(self.transformer, layout, layout.devices, self.global_batch, self.sequence_length)
        if reason:
            raise InvalidInput(reason)
        if layout.devices > self.per_machine and layout.devices % self.per_machine:
            raise InvalidInput(
                f"the layout has {layout.devices} devices; above one machine they must be a multiple of per_machine, which is "
                f"{self.per_machine}"
            )

    @property
    def products_in_pieces(self) -> bool:
        """Whether products run in pieces beside the collectives of sequence parallelism."""
        return self.overlap_products and self.layout.sequence_parallel

    def whole_products(self, program: str) -> list[str]:
        """Returns a sentence if products were simulated in pieces, and `program` runs them as a whole."""
        if not self.products_in_pieces:
            return []
        return [f"{program} runs no products in pieces beside collectives, which is slower than what was simulated"]

    def uneven_vocabulary(self) -> list[str]:
        """Returns a sentence if the vocabulary that was simulated is padded, and the program divides it as it is."""
        tokens, tp = self.transformer.vocabulary, self.layout.tp
        padded_vocabulary = tp * self.transformer.vocabulary_share(tp)
        if tokens == padded_vocabulary:
            return []
        return [
            f"the vocabulary of {tokens} is divided unevenly, which is slower than the {padded_vocabulary} that were simulated; "
            "pad the model's vocab_size"
        ]

    def uneven_pieces(self, factor: int = 1) -> list[str]:
        """Returns a sentence if the pieces of the sequence, two per device of `cp`, are not `factor` equal parts each."""
        pieces = factor * (2 * self.layout.cp if self.layout.cp > 1 else 1)
        if self.sequence_length % pieces == 0:
            return []
        return [f"sequence_length is {self.sequence_length}; it must be a multiple of {pieces} there"]
