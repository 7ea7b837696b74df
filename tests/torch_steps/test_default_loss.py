"""The loss of a step that names none."""

import pytest
import torch

from baechi_lab.errors import InvalidInput
from baechi_lab.torch_steps.default_loss import own_loss
from baechi_lab.torch_steps.step import TorchStep

LOSS = torch.tensor(3.0, requires_grad=True)
LOGITS = torch.full((2, 2), 2.0)


@pytest.mark.parametrize(
    "outputs",
    [
        LOSS,
        (LOGITS, LOSS),
        {"logits": LOGITS, "cost": LOSS},
        (LOSS, torch.tensor(0.5), torch.tensor(7)),  # an accuracy without a gradient, a count
        {"logits": LOGITS, "loss": LOSS.reshape(1), "penalty": LOSS},
        LOSS.detach(),
    ],
)
def test_the_only_scalar_is_the_loss(outputs):
    assert own_loss(outputs).item() == 3.0


def test_outputs_without_a_scalar_have_the_mean_of_their_squares():
    assert own_loss((LOGITS, 3 * LOGITS)).item() == 2**2 + 6**2


def test_a_model_with_two_losses_must_say_which():
    class TwoLosses(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x).sum(), self.weight.sum()

    step = TorchStep("two", lambda: TwoLosses(2, 2), (torch.ones(1, 2),))
    with pytest.raises(InvalidInput, match="2 outputs are scalars; give the step a loss"):
        step.run(step.model())


def test_bug_a_loss_that_fails_in_a_kernel_was_a_runtime_error():
    """Such as lengths of the whole batch in a micro-batch."""

    def loss(outputs, labels):
        lengths = torch.full((4,), 3)
        return torch.nn.functional.ctc_loss(outputs.log_softmax(-1).transpose(0, 1), labels, lengths, lengths - 1)

    inputs, labels = torch.ones(4, 3, 5), torch.ones(4, 2, dtype=torch.long)
    step = TorchStep("lengths", lambda: torch.nn.Linear(5, 6), (inputs,), loss, labels)
    step.run(step.model())
    (half, _) = step.micro_batches(2)
    with pytest.raises(
        InvalidInput, match=r"loss of step 'lengths' failed on .* RuntimeError: .* must be of size batch_size"
    ):
        half.run(half.model())
