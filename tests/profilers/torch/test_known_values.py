"""Code that looks at values of fake tensors: known where they depend on integer inputs and on what the model makes itself."""

import pytest

torch = pytest.importorskip("torch")

import baechi_lab as bl  # noqa: E402
from baechi_lab.errors import AssumedShares, InvalidInput  # noqa: E402
from baechi_lab.profilers.torch.known_values import MOST_ELEMENTS  # noqa: E402
from baechi_lab.profilers.torch.layer_estimate import estimate_layers  # noqa: E402
from baechi_lab.profilers.torch.routing import even_choice, experts_by_shape  # noqa: E402


class Model(torch.nn.Module):
    """A layer of 4, applied to as many rows as `count` says."""

    def __init__(self, count):
        super().__init__()
        self.layer, self.count = torch.nn.Linear(4, 4, bias=False), count

    def forward(self, x, tokens):
        return self.layer(x.new_zeros(int(self.count(self.layer(x), tokens)), 4))


TOKENS = torch.tensor([[5, 5, 0], [5, 0, 0]])
X = torch.ones(3, 4)


def in_place(x, tokens):
    mask = torch.ones(2, 3, dtype=torch.long)
    mask[:, 1:].mul_(tokens[:, 1:])  # through a view: 1 5 0, 1 0 0
    return mask.sum()


def by_mask(x, tokens):
    return x.repeat(2, 1).view(2, 3, 4)[tokens != 0].shape[0]


def gathered(x, tokens):
    return sum(len(torch.unique(row)) for row in tokens.split(1))


def like(x, tokens):
    return torch.full_like(x, 2.0).sum() / torch.tensor(8.0)  # 3 * 4 * 2 / 8


def known_inf(x, tokens):
    """All other values are taken as finite."""
    bias = torch.zeros(2).masked_fill(torch.tensor([True, False]), float("-inf"))
    return 2 if torch.isinf(bias).any() else 9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "rows"),
    [
        (lambda x, tokens: (tokens != 0).sum(), 3),
        (lambda x, tokens: len(tokens.nonzero()), 3),
        (lambda x, tokens: tokens.max().item(), 5),
        (lambda x, tokens: x.masked_select((tokens != 0).sum(0, keepdim=True).T > 0).numel(), 8),
        (lambda x, tokens: sum(tokens[0].tolist()), 10),
        (lambda x, tokens: torch.repeat_interleave(tokens[0], tokens[1]).shape[0], 5),
        (lambda x, tokens: 1 + bool(torch.equal(tokens, tokens.clone())), 2),
        (in_place, 7),
        (by_mask, 3),
        (gathered, 4),
        (like, 3),
        (known_inf, 2),
        (lambda x, tokens: torch.tensor([row.max() - 4 for row in tokens]).sum(), 2),  # a list of tensors
        (lambda x, tokens: torch.tensor([[tokens[0, 0]], (tokens[1, 0],)]).sum(), 10),
    ],
)
def test_values_that_depend_on_no_weights_are_those_of_a_real_run(count, rows):
    model = Model(count)
    assert len(model(X, TOKENS)) == rows
    flops = estimate_layers(model, (X, TOKENS), mode="inference").flops
    assert flops == 2 * 4 * 4 * (3 + rows), "the layer runs on the three rows of x and on those of its choice"
    assert bl.torch.profile(model, (X, TOKENS), hardware="a100", granularity="operator").n > 2


def written(x, tokens):
    """A known mask that is not known any more once something of weights is written to a part of it."""
    mask = torch.ones(2, 3)
    mask[0].copy_(x[0, :3])
    return mask[1].sum()


@pytest.mark.parametrize(
    "count",
    [
        lambda x, tokens: x.sum(),
        lambda x, tokens: (x.argmax(-1) * 0).sum(),
        lambda x, tokens: torch.ones(MOST_ELEMENTS + 1).sum(),
        lambda x, tokens: torch.empty(3).sum(),
        lambda x, tokens: x[x > 0].shape[0],
        written,
    ],
)
def test_values_that_depend_on_weights_are_refused(count):
    with pytest.raises(InvalidInput, match="looks at the values of tensors"):
        bl.torch.profile(Model(count), (X, TOKENS), hardware="a100")


@pytest.mark.parametrize(
    "count",
    [
        lambda x, tokens: torch.rand([]) < 0.5,
        lambda x, tokens: torch.rand(3).sum(),
        lambda x, tokens: torch.zeros(3).bernoulli_(0.5).sum(),
        lambda x, tokens: torch.bernoulli(torch.full((3,), 0.5)).sum() + tokens.sum(),
    ],
)
def test_bug_layer_drop_was_refused_without_its_cause(count):
    with pytest.raises(
        InvalidInput,
        match=r"decides by a random number .* profile the model measured, .* if it is a layer drop, set it to 0",
    ):
        bl.torch.profile(Model(count), (X, TOKENS), hardware="a100")


class Detector(torch.nn.Module):
    """As torchvision's detectors: training draws a size of images, and scores choose the boxes."""

    def __init__(self):
        super().__init__()
        self.features, self.boxes = torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(8, 4)

    def forward(self, images):
        if self.training:
            size = (8, 16)[int(torch.empty(1).uniform_(0.0, 2.0).item())]
            images = torch.nn.functional.interpolate(images, size=size)
        boxes = self.boxes(self.features(images).flatten(2).transpose(1, 2).flatten(0, 1))
        return boxes[torch.where(boxes[:, 0] > 0)[0]]


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("training", r"what runs or how large tensors are, .* measured, .* as detectors in training need; if it is"),
        ("inference", r"looks at the values of tensors \(aten\.nonzero\.default\), on which shapes depend .* measured"),
    ],
)
def test_bug_detectors_were_refused_as_if_they_dropped_layers(mode, reason):
    with pytest.raises(InvalidInput, match=reason):
        bl.torch.profile(Detector(), torch.ones(2, 3, 8, 8), mode=mode, hardware="a100")


def test_bug_checks_of_distributions_were_refused():
    """That a scale is above zero is looked at only to raise an error."""

    def count(x, tokens):
        torch.distributions.Normal(x, x.exp()).log_prob(x)
        return tokens.sum()

    validates = torch.distributions.Distribution._validate_args
    names = bl.torch.profile(Model(count), (X, TOKENS), hardware="a100", mode="inference").names
    assert "exp" in names and torch.distributions.Distribution._validate_args is validates


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_bug_nested_tensors_were_refused_with_the_text_of_an_assertion(layout):
    """Their lengths are values, and those of layout torch.strided do not even tell their sizes."""
    nested = torch.nested.nested_tensor([torch.ones(2, 8), torch.ones(3, 8)], layout=layout)
    messages = {torch.jagged: "the lengths of a nested tensor", torch.strided: "layout=torch.jagged, or pad"}
    with pytest.raises(InvalidInput, match=messages[layout]):
        bl.torch.profile(torch.nn.Linear(8, 8), nested, hardware="a100")


def test_bug_nested_tensors_within_a_model_were_refused_with_the_text_of_an_assertion():
    model = Model(lambda x, tokens: torch.nested.as_nested_tensor([x[:1], x[:2]], layout=torch.jagged).values().sum())
    with pytest.raises(InvalidInput, match=r"looks at the values of tensors \(the lengths of a nested tensor\)"):
        bl.torch.profile(model, (X, TOKENS), hardware="a100")


def test_inputs_without_values_are_refused():
    model = Model(lambda x, tokens: tokens.sum())
    for tokens in (TOKENS.to("meta"), TOKENS.float()):
        with pytest.raises(InvalidInput, match="looks at the values of tensors"):
            bl.torch.profile(model, (X, tokens), hardware="a100")


@pytest.mark.parametrize(
    ("tokens", "rows"),
    [
        (torch.arange(3)[None].expand(2, 3), 6),  # two rows that are one in memory: 0 + 1 + 2, twice
        (torch.arange(4).unfold(0, 2, 1), 9),  # windows that overlap: 0 + 1, 1 + 2, 2 + 3
    ],
)
def test_values_of_inputs_that_share_memory(tokens, rows):
    model = Model(lambda x, tokens: tokens.contiguous().sum())
    assert estimate_layers(model, (X, tokens), mode="inference").flops == 2 * 4 * 4 * (3 + rows)


def test_real_memory_that_a_model_writes_is_not_known():
    buffer = torch.zeros(2)

    def count(x, tokens):
        buffer.add_(1)
        return buffer.sum()

    with pytest.raises(InvalidInput, match="looks at the values of tensors"):
        bl.torch.profile(Model(count), (X, TOKENS), hardware="a100")


class Mixture(torch.nn.Module):
    """Each of the rows goes to two of three experts."""

    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Linear(4, 3)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(4, 4, bias=False) for _ in range(3))

    def forward(self, x):
        weights, experts = self.gate(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            rows, place = torch.where(experts == k)
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]) * weights[rows, place, None])
        return out


def test_experts_get_the_same_share_of_the_rows():
    """Six rows, two experts each: four rows for each of three experts. An expert that is chosen first is not chosen second."""
    estimate = estimate_layers(Mixture(), torch.ones(6, 4), mode="inference")
    calls = [call.key for call in estimate.layers.trace.calls]
    work = {k: sum(kernel.flops for (_, i), kernel in estimate.kernels if calls[i] == f"experts.{k}") for k in range(3)}
    assert work == dict.fromkeys(range(3), 2 * 4 * 4 * 4)
    assert even_choice((2, 3), 1, torch.tensor([[True, False, False], [False, True, False]])).tolist() == [[1], [2]]


class Transcriber(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 5)

    def forward(self, x, targets, lengths):
        steps = torch.full(lengths.shape, len(x))
        return torch.nn.functional.ctc_loss(self.layer(x).log_softmax(-1), targets, steps, lengths)


def test_bug_ctc_losses_were_refused():
    """Of 6 steps and 2 samples, whose longest text has 3 signs: the scores of 2 * 3 + 1 states at each step are kept."""
    inputs = (torch.ones(6, 2, 4), torch.tensor([[1, 2, 3], [1, 2, 0]]), torch.tensor([3, 2]))
    graph = bl.torch.profile(Transcriber(), inputs, hardware="a100", mode="training")
    saved = next(t for t in graph.outputs(graph.index["ctc_loss"]) if graph.tensor_names[t] == "saved")
    scores, losses, lengths = 6 * 2 * 7 * 4, 2 * 4, 2 * 8
    assert scores <= graph.tensor_bytes[saved] <= scores + losses + 2 * lengths


class Padding(torch.nn.Module):
    """Has the sizes of its convolution as buffers, as audio codecs do."""

    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv1d(4, 4, 5, stride=2)
        self.register_buffer("stride", torch.tensor(2), persistent=False)
        self.register_buffer("width", torch.tensor(5, dtype=torch.int64), persistent=False)

    def forward(self, x):
        windows = (x.shape[-1] - self.width) / self.stride + 1
        missing = (torch.ceil(windows).to(torch.int64) - 1) * self.stride + self.width - x.shape[-1]
        return self.convolution(torch.nn.functional.pad(x, (0, int(missing))))


def test_bug_sizes_in_buffers_were_unknown():
    """Mimi and EnCodec were refused, as they read these. Seven windows of 5, 2 apart, need 5 + 6 * 2 = 17 samples of 16."""
    graph = bl.torch.profile(Padding(), torch.ones(2, 4, 16), hardware="cpu-core")
    assert graph.output_shapes[graph.index["convolution"]] == "f32[2,4,7]"
    assert graph.output_shapes[graph.index["pad"]] == "f32[2,4,17]"


class HandWritten(torch.nn.Module):
    """Four experts, two for each of 32 rows, written by hand as `route` says; they have no name that says so."""

    def __init__(self, route):
        super().__init__()
        self.route, self.gate = route, torch.nn.Linear(8, 4)
        self.mlps = torch.nn.ModuleList(torch.nn.Linear(8, 8, bias=False) for _ in range(4))

    def forward(self, x):
        return self.route(self.gate(x).softmax(-1), self.mlps, x)


def by_positions(scores, experts, x):
    weights, choices = scores.topk(2)
    y = torch.zeros_like(x)
    for k, expert in enumerate(experts):
        row, column = torch.where(choices == k)
        y.index_add_(0, row, expert(x[row]) * weights[row, column, None])
    return y


def by_order(scores, experts, x):
    weights, choices = scores.sort(-1, descending=True)
    y = torch.zeros_like(x)
    for k, expert in enumerate(experts):
        row, column = (choices[:, :2] == k).nonzero(as_tuple=True)
        y = y.index_add(0, row, expert(x[row]) * weights[row, column, None])
    return y


def by_counts(scores, experts, x):
    """As DeepSeek's own code: the counts of all experts are read at once, as an array of NumPy."""
    weights, choices = torch.topk(scores, 2, dim=-1, sorted=False)
    order = choices.flatten().argsort()
    rows, counts = x[order // 2], choices.new_zeros(len(x), 4).scatter_(1, choices, 1).sum(0).cpu().numpy()
    outputs = [expert(own_rows) for expert, own_rows in zip(experts, rows.split(counts.tolist()), strict=True)]
    y = torch.empty_like(rows)
    y[order] = torch.cat(outputs)
    return (y.view(len(x), 2, -1) * weights[..., None]).sum(1)


@pytest.mark.parametrize("route", [by_positions, by_order, by_counts])
def test_bug_mixtures_written_by_hand_were_refused(route):
    """Every expert gets 32 * 2 / 4 = 16 rows; forward and both gradients have a product each."""
    with pytest.warns(AssumedShares, match="'mlps' has the shapes of 4 experts"):
        estimate = estimate_layers(HandWritten(route), torch.ones(32, 8, requires_grad=True), mode="training")
    experts, router = 3 * 4 * 2 * 16 * 8 * 8, 3 * 2 * 32 * 8 * 4
    assert estimate.flops == experts + router


def test_shapes_of_experts_need_a_router():
    layers = lambda: torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))  # noqa: E731
    pair = lambda **modules: torch.nn.ModuleDict(modules)  # noqa: E731
    assert experts_by_shape(pair(layers=layers(), head=torch.nn.Linear(8, 5))) == {}
    assert experts_by_shape(pair(layers=layers(), gate=torch.nn.Linear(6, 4))) == {}
    assert experts_by_shape(pair(block=pair(layers=layers(), gate=pair(w=torch.nn.Linear(8, 4))))) == {
        4: "block.layers"
    }


def test_bug_a_list_of_layers_with_none_was_an_attribute_error():
    """Informer has convolutions between its layers, and None after the last one."""

    class Distilled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8), None])

        def forward(self, x):
            return self.layers[0](x)

    assert bl.torch.profile(Distilled(), torch.ones(2, 8), hardware="a100").names[0] == "layers.0"
