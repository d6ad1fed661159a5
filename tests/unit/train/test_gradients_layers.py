"""Every layer rule against the slow loop, for batches of 0, 1 and more, on every device there is.

Each goes three ways: eager, filled up as a captured step does it, and by the traced graph that a
compiler gets. Compiled by torch's compiler (slow), and captured, they are tested below.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tightrope.errors import InvalidInput
from tightrope.train.clip import FlatClip
from tightrope.train.gradients import Gradients
from tightrope.train.gradients.reference import loop_clipped_sum
from tightrope.train.gradients.traced import CannotTrace
from tightrope.train.padded import PaddedBatch, Program
from tightrope.train.standard_convolution import StandardConv2d
from tightrope.train.symmetric_convolution import SymmetricConv2d


@pytest.fixture(params=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
def device(request, monkeypatch):
    """On a GPU convolutions are in float32, as the tolerance asks."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    return request.param


def losses_of(model, *inputs):
    out = model(*inputs)
    out = out[0] if isinstance(out, tuple) else out
    flat = out.flatten(1)
    weights = torch.linspace(-1, 2, flat.shape[1]).to(flat)
    return (flat * weights).square().mean(1) + flat.sum(1)


def compare(model, *inputs, clip=None, method="auto", tolerance=2e-5, views=1, compiled=False):
    """Float32 engine against the loop in float64. views: rows of the inputs for each example."""
    clip = clip or FlatClip(0.5)
    exact_model = copy.deepcopy(model).double()
    exact_inputs = [
        (x.double() if x.is_floating_point() else x).unflatten(0, (-1, views)) for x in inputs
    ]

    def exact_losses(m, *xs):
        return losses_of(m, *(x.flatten(0, 1) for x in xs)).view(-1, views).mean(1)

    expected = loop_clipped_sum(exact_model, exact_losses, clip, *exact_inputs)
    engine = Gradients(model, method, views=views)
    mine = lambda *xs: losses_of(model, *xs).view(-1, views).mean(1)  # noqa: E731
    try:
        batch = engine.clipped_sum(mine(*inputs), clip)
        ways = [batch]
        if batch.examples > 1:
            ways.append(padded_sum(engine, mine, inputs, clip))
        if batch.examples > 1 and method == "auto":
            ways.append(traced_sum(engine, mine, inputs, clip, compiled=compiled))
    finally:
        engine.detach()
    assert batch.examples == inputs[0].shape[0] // views
    total = sum(float(e.square().sum()) for e in expected) ** 0.5
    for found in ways:
        for name, sums, truth in zip(engine.names, found.sums, expected, strict=True):
            assert sums.shape == truth.shape, name
            error = float((sums.double() - truth).norm())
            assert error <= tolerance * max(total, 1e-30) + 2e-4 * float(truth.norm()), (
                name,
                error,
            )
    return batch


def padded_sum(engine, losses, inputs, clip):
    """Filled up with copies of the first example, which do not count."""
    filled = [torch.cat([x, x[: 2 * engine.views]]) for x in inputs]
    numbers = torch.arange(len(filled[0]) // engine.views, device=filled[0].device)
    present = numbers < len(inputs[0]) // engine.views
    return engine.clipped_sum(losses(*filled), clip, present=present)


def traced_sum(engine, losses, inputs, clip, *, compiled=False):
    """By the graph that a compiler gets, made from other inputs of the same shapes."""
    traced = engine.traced(losses, tuple(x.flip(0) for x in inputs))
    if compiled:
        traced.compile()
    examples = inputs[0].shape[0] // engine.views
    present = torch.ones(examples, dtype=torch.bool, device=inputs[0].device)
    return engine.clipped_sum_of(traced, inputs, clip, present=present, chain=1000)[0]


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


class OneStepAtATime(nn.Module):
    """A recurrent cell, used once for each position."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x):
        state = None
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        return state[0] if isinstance(state, tuple) else state


class Backwards(nn.Module):
    def __init__(self):
        super().__init__()
        self.last, self.middle, self.first = nn.Linear(4, 2), nn.Linear(6, 4), nn.Linear(5, 6)

    def forward(self, x):
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))


def convolution(kind, **options):
    channels = options.pop("channels", (4, 6))
    return nn.Sequential(kind(*channels, **options), nn.Tanh())


class OwnStandard(nn.Conv2d):
    def forward(self, x):
        spread, mean = torch.var_mean(self.weight, (1, 2, 3), keepdim=True)
        return self._conv_forward(x, (self.weight - mean) / (spread + 1e-3).sqrt(), self.bias)


IMAGE, SIGNAL, VOLUME = (4, 7, 6), (4, 9), (4, 5, 4, 6)
WORDS = ("ids", (7,), 11)
LAYERS = {
    "linear": (
        lambda: nn.Sequential(nn.Linear(5, 7), nn.ReLU(inplace=True), nn.Linear(7, 3)),
        (5,),
    ),
    "linear without bias": (lambda: nn.Linear(5, 7, bias=False), (5,)),
    "linear over positions": (lambda: nn.Linear(5, 7), (3, 5)),
    "linear over a grid": (lambda: nn.Linear(5, 7), (2, 3, 5)),
    "linear over many positions": (lambda: nn.Linear(3, 2), (40, 3)),
    "linear wide, few positions": (lambda: nn.Linear(64, 80), (2, 64)),
    "conv1d": (lambda: convolution(nn.Conv1d, kernel_size=3, stride=2, padding=1), SIGNAL),
    "conv2d": (lambda: convolution(nn.Conv2d, kernel_size=3, padding=1), IMAGE),
    "conv2d behind each other": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 6, 3, padding=1),
            nn.Tanh(),
            nn.Conv2d(6, 4, 3, stride=2, padding=1),
            nn.Tanh(),
            nn.Conv2d(4, 4, 2, groups=2, padding=1, dilation=2),
        ),
        IMAGE,
    ),
    "conv2d strided": (lambda: convolution(nn.Conv2d, kernel_size=(3, 2), stride=(2, 3)), IMAGE),
    "conv2d dilated": (lambda: convolution(nn.Conv2d, kernel_size=2, dilation=(2, 3)), IMAGE),
    "conv2d grouped": (lambda: convolution(nn.Conv2d, kernel_size=3, groups=2), IMAGE),
    "conv2d depthwise": (
        lambda: convolution(nn.Conv2d, channels=(4, 8), kernel_size=3, groups=4, padding=2),
        IMAGE,
    ),
    "conv2d depthwise strided": (
        lambda: convolution(
            nn.Conv2d, channels=(4, 4), kernel_size=(3, 2), groups=4, stride=2, dilation=(1, 2)
        ),
        IMAGE,
    ),
    "conv2d depthwise, large": (
        lambda: convolution(nn.Conv2d, channels=(4, 8), kernel_size=3, groups=4, padding=1),
        (4, 18, 16),
    ),
    "conv1d depthwise, large": (
        lambda: convolution(nn.Conv1d, channels=(4, 4), kernel_size=5, groups=4, dilation=2),
        (4, 300),
    ),
    "conv1d depthwise circular": (
        lambda: convolution(
            nn.Conv1d, channels=(4, 4), kernel_size=3, groups=4, padding=1, padding_mode="circular"
        ),
        SIGNAL,
    ),
    "conv3d depthwise": (
        lambda: convolution(nn.Conv3d, channels=(4, 8), kernel_size=2, groups=4, stride=(1, 2, 1)),
        VOLUME,
    ),
    "conv2d circular": (
        lambda: convolution(nn.Conv2d, kernel_size=3, padding=2, padding_mode="circular"),
        IMAGE,
    ),
    "conv2d reflect": (
        lambda: convolution(nn.Conv2d, kernel_size=3, padding=(1, 2), padding_mode="reflect"),
        IMAGE,
    ),
    "conv2d same": (lambda: convolution(nn.Conv2d, kernel_size=(2, 4), padding="same"), IMAGE),
    "conv1d same circular": (
        lambda: convolution(
            nn.Conv1d, kernel_size=4, padding="same", padding_mode="circular", dilation=2
        ),
        SIGNAL,
    ),
    "conv2d many channels": (
        lambda: convolution(nn.Conv2d, channels=(4, 200), kernel_size=5),
        IMAGE,
    ),
    "conv2d standardised": (lambda: convolution(StandardConv2d, kernel_size=3, padding=1), IMAGE),
    "conv2d standardised, grouped and strided": (
        lambda: convolution(StandardConv2d, kernel_size=3, groups=2, stride=2),
        IMAGE,
    ),
    "conv2d standardised, many channels": (
        lambda: convolution(StandardConv2d, channels=(4, 200), kernel_size=5, bias=False),
        IMAGE,
    ),
    "conv2d standardised in a layer of one's own": (
        lambda: convolution(OwnStandard, kernel_size=3, stride=2),
        IMAGE,
    ),
    "conv2d symmetric": (
        lambda: convolution(SymmetricConv2d, channels=(16, 8), kernel_size=3, padding=1),
        (16, 5, 4),
    ),
    "conv2d symmetric, from colours": (
        lambda: convolution(SymmetricConv2d, channels=(4, 24), kernel_size=2, plain=True),
        IMAGE,
    ),
    "conv3d": (
        lambda: convolution(nn.Conv3d, kernel_size=(2, 3, 2), padding=1, stride=(1, 2, 1)),
        VOLUME,
    ),
    "conv3d grouped replicate": (
        lambda: convolution(
            nn.Conv3d, kernel_size=2, padding=1, groups=2, padding_mode="replicate"
        ),
        VOLUME,
    ),
    "embedding": (lambda: nn.Sequential(nn.Embedding(11, 4), Mean()), WORDS),
    "embedding of a grid": (lambda: nn.Embedding(11, 4), ("ids", (2, 3), 11)),
    "embedding with padding": (
        lambda: nn.Sequential(nn.Embedding(11, 4, padding_idx=2), nn.Tanh(), Mean()),
        WORDS,
    ),
    "embedding of few rows": (
        lambda: nn.Sequential(nn.Embedding(3, 4, padding_idx=1), nn.Tanh(), Mean()),
        ("ids", (6,), 3),
    ),
    "embedding of one position": (lambda: nn.Embedding(11, 4), ("ids", (), 11)),
    "embedding bag": (lambda: nn.EmbeddingBag(11, 4, mode="mean", padding_idx=3), WORDS),
    "embedding bag sum": (lambda: nn.EmbeddingBag(11, 4, mode="sum"), WORDS),
    "layer norm": (lambda: nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6)), (3, 5)),
    "layer norm two dims": (lambda: nn.LayerNorm((3, 5)), (2, 3, 5)),
    "layer norm no positions": (lambda: nn.LayerNorm(5), (5,)),
    "layer norm without bias": (lambda: nn.LayerNorm(5, bias=False), (3, 5)),
    "rms norm": (lambda: nn.Sequential(nn.Linear(5, 6), nn.RMSNorm(6)), (3, 5)),
    "group norm": (lambda: nn.GroupNorm(2, 4), IMAGE),
    "instance norm 1d": (lambda: nn.InstanceNorm1d(4, affine=True), SIGNAL),
    "instance norm 2d": (lambda: nn.InstanceNorm2d(4, affine=True), IMAGE),
    "instance norm 3d": (lambda: nn.InstanceNorm3d(4, affine=True), VOLUME),
    "rnn": (lambda: nn.RNN(5, 6, num_layers=2, batch_first=True), (4, 5)),
    "rnn relu": (lambda: nn.RNN(5, 6, nonlinearity="relu", batch_first=True), (4, 5)),
    "lstm": (lambda: nn.LSTM(5, 6, bidirectional=True, batch_first=True), (4, 5)),
    "lstm two layers": (lambda: nn.LSTM(5, 6, num_layers=2, batch_first=True), (4, 5)),
    "gru": (lambda: nn.GRU(5, 6, num_layers=2, bidirectional=True, batch_first=True), (4, 5)),
    "gru without bias": (lambda: nn.GRU(5, 6, bias=False, batch_first=True), (4, 5)),
    "lstm, many steps": (lambda: nn.LSTM(3, 4, batch_first=True), (18, 3)),
    "gru, many steps": (lambda: nn.GRU(3, 4, batch_first=True), (18, 3)),
    "rnn cell": (lambda: OneStepAtATime(nn.RNNCell(5, 6, nonlinearity="relu")), (3, 5)),
    "lstm cell": (lambda: OneStepAtATime(nn.LSTMCell(5, 6)), (3, 5)),
    "gru cell": (lambda: OneStepAtATime(nn.GRUCell(5, 6, bias=False)), (3, 5)),
    "first defined, last to run": (Backwards, (5,)),
    "transposed convolution by the general way": (
        lambda: nn.ConvTranspose2d(4, 3, 3, stride=2),
        IMAGE,
    ),
    "prelu by the general way": (lambda: nn.Sequential(nn.Linear(5, 6), nn.PReLU(6)), (5,)),
}


def example(shape, batch):
    if shape[0] == "ids":
        return torch.randint(0, shape[2], (batch, *shape[1]))
    return torch.randn(batch, *shape)


def layer(name, batch):
    torch.manual_seed(len(name) + batch)
    build, shape = LAYERS[name]
    model = build()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.7)
    return model, shape


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", LAYERS)
def test_a_compiled_layer_equals_the_loop(name, device):
    model, shape = layer(name, 3)
    compare(model.to(device), example(shape, 3).to(device), compiled=True)


@pytest.mark.filterwarnings("ignore")  # of torch, about layers that autocast leaves alone
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_a_captured_layer_has_the_sums_of_the_eager_one(name, half, device, request):
    if device == "cpu":
        request.getfixturevalue("cpu_graphs")
    model, shape = layer(name, 4)
    x, weights = example(shape, 4).to(device), torch.linspace(-1, 2, 7, device=device)
    engine, clip = Gradients(model.to(device)), FlatClip(0.5)

    def each(x):
        with torch.autocast(device, torch.bfloat16, enabled=half):
            out = model(x)
        flat = (out[0] if isinstance(out, tuple) else out).flatten(1).float()
        return flat.sum(1) + (flat[:, :1] * weights).square().mean(1)

    def compute(values, present):
        losses = each(*values)
        return engine.clipped_sum(losses, clip, present=present), losses.detach()

    program = Program(compute, PaddedBatch((x.flip(0),), 6))
    program.capture()
    found, _ = program.run((x,))
    mine, eager = (
        torch.cat([s.reshape(-1) for s in batch.sums])
        for batch in (found, engine.clipped_sum(each(x), clip))
    )
    assert float((mine - eager).norm()) <= (2e-2 if half else 1e-3) * float(eager.norm())


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("batch", [0, 1, 5])
@pytest.mark.parametrize("name", LAYERS)
def test_layer_equals_the_loop(name, batch, device):
    model, shape = layer(name, batch)
    model.to(device)
    if batch == 0 and name.startswith("instance norm"):
        # torch itself cannot run this layer on nothing; no forward pass is needed then.
        engine = Gradients(model)
        empty = engine.clipped_sum(torch.zeros(0, device=device), FlatClip(1.0))
        assert all(not total.any() for total in empty.sums)
        return
    compare(model, example(shape, batch).to(device))


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize(("batch", "method"), [(1, "auto"), (3, "auto"), (3, "two-pass")])
@pytest.mark.parametrize("name", LAYERS)
def test_views_of_an_example_are_clipped_as_one(name, batch, method, device):
    model, shape = layer(name, batch)
    rows = example(shape, 4 * batch).to(device)
    compare(model.to(device), rows, views=4, method=method)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_linear_layer_without_inputs_has_its_bias_at_every_place(device):
    compare(nn.Linear(0, 3).to(device), torch.randn(3, 2, 5, 0, device=device))


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.scale = nn.Linear(4, 3), nn.Parameter(torch.randn(5, 3))

    def forward(self, x):
        return self.inner(x) * self.scale


def test_a_single_example_is_no_graph_where_a_parameter_enters_by_itself():
    """It is differentiated as a whole, which what comes out of a graph would lack."""
    model, x = Scaled(), torch.randn(1, 5, 4)
    engine = Gradients(model)
    engine.clipped_sum(losses_of(model, x), FlatClip(0.5))
    with pytest.raises(CannotTrace, match="single example"):
        engine.traced(lambda x: losses_of(model, x), (x,))


def test_a_compiler_is_given_convolutions_only():
    model, shape = layer("conv2d behind each other", 3)
    engine, x = Gradients(model), example(shape, 3)
    engine.clipped_sum(losses_of(model, x), FlatClip(0.5))
    traced = engine.traced(lambda x: losses_of(model, x), (x,))
    targets = [str(node.target) for node in traced._run.graph.nodes]
    assert targets.count("aten.convolution.default") == 3 + 2  # the first has no input gradient
    assert "aten.convolution_backward.default" not in targets


class Attention(nn.Module):
    def __init__(self, case, **options):
        super().__init__()
        self.case = case
        self.inner = nn.MultiheadAttention(8, 2, **options)

    def forward(self, x, y):
        call = {
            "self": lambda: self.inner(x, x, x),
            "fast": lambda: self.inner(x, x, x, need_weights=False),
            "cross": lambda: self.inner(x, y, y),
            "both": lambda: self.inner(x + self.inner(x, x, x)[0], y, y),
            "causal": lambda: self.inner(x, x, x, attn_mask=x.new_ones(4, 4).triu(1).bool()),
            "padding": lambda: self.inner(
                x, y, y, key_padding_mask=x.new_ones(len(x), 6).cumsum(1) > 4
            ),
            "per head": lambda: self.inner(x, x, x, attn_mask=x.new_zeros(2 * len(x), 4, 4)),
            "time first": lambda: self.inner(*(v.transpose(0, 1) for v in (x, y, y))),
        }[self.case]
        out, _ = call()
        return out.transpose(0, 1) if self.case == "time first" else out


@pytest.mark.parametrize("batch", [0, 1, 4])
@pytest.mark.parametrize(
    ("case", "options"),
    [
        ("self", {"batch_first": True}),
        ("fast", {"batch_first": True, "bias": False}),
        ("cross", {"batch_first": True}),
        ("both", {"batch_first": True}),
        ("causal", {"batch_first": True}),
        ("padding", {"batch_first": True, "add_bias_kv": True, "add_zero_attn": True}),
        ("per head", {"batch_first": True}),
        ("time first", {}),
        ("cross", {"batch_first": True, "kdim": 5, "vdim": 5}),
    ],
)
def test_attention_equals_the_loop(case, options, batch, device):
    torch.manual_seed(batch)
    model = Attention(case, **options)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    width = options.get("kdim", 8)
    for views in (1, 3):
        rows = views * batch
        x, y = torch.randn(rows, 4, 8), torch.randn(rows, 6, width)
        compare(model.to(device), x.to(device), y.to(device), views=views)


def test_attention_forward_is_unchanged():
    torch.manual_seed(0)
    model = nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True)
    x, mask = (
        torch.randn(3, 5, 8),
        torch.zeros(5, 5).masked_fill(torch.ones(5, 5).triu(1) > 0, -1e9),
    )
    expected, weights = model(x, x, x, attn_mask=mask)
    engine = Gradients(model)
    out, shown = model(x, x, x, attn_mask=mask)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(shown, weights)
    engine.detach()
    assert "forward" not in model.__dict__


def test_recurrent_forward_is_unchanged():
    torch.manual_seed(0)
    for model in (nn.LSTM(3, 4, 2, bidirectional=True), nn.GRU(3, 4, 2), nn.RNN(3, 4)):
        x = torch.randn(6, 2, 3)  # time first
        expected, state = model(x)
        engine = Gradients(model)
        out, final = model(x)
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(final, state)
        engine.detach()


def test_a_sequence_has_a_step():
    model = nn.LSTM(3, 4, batch_first=True)
    Gradients(model)
    with pytest.raises(InvalidInput, match="no steps"):
        model(torch.zeros(2, 0, 3))


def test_recurrent_cells_are_unchanged():
    torch.manual_seed(0)
    x = torch.randn(4, 3)
    for cell in (nn.LSTMCell(3, 5), nn.GRUCell(3, 5), nn.RNNCell(3, 5)):
        expected = cell(x)
        engine = Gradients(cell)
        torch.testing.assert_close(cell(x), expected)
        torch.testing.assert_close(cell(x, expected), cell.eval()(x, expected))
        engine.detach()
        assert "forward" not in cell.__dict__


class Checkpointed(nn.Module):
    """Layers that are replaced by visible steps, inside an activation checkpoint."""

    def __init__(self):
        super().__init__()
        self.inner = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.memory, self.cell = nn.LSTM(8, 4, batch_first=True), nn.GRUCell(4, 3)

    def part(self, x):
        return self.cell(self.memory(self.inner(x))[0][:, -1])

    def forward(self, x):
        return checkpoint(self.part, x, use_reentrant=False)


@pytest.mark.parametrize("method", ["book-keeping", "two-pass"])
def test_checkpointed_attention_and_recurrent_layers_equal_the_loop(method):
    torch.manual_seed(0)
    compare(Checkpointed(), torch.randn(4, 3, 8), method=method)
    compare(Checkpointed(), torch.randn(4, 3, 8), method=method, views=2)


def test_transformer_encoder_layer_equals_the_loop():
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    compare(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(3, 5, 8))


def test_scaled_dot_product_attention_equals_the_loop():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

        def forward(self, x):
            q, k, v = self.qkv(x).unflatten(2, (2, -1)).transpose(1, 2).chunk(3, -1)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(y.transpose(1, 2).flatten(2))

    torch.manual_seed(2)
    compare(Block(), torch.randn(4, 5, 8))


def test_frozen_parameters_are_left_out():
    model = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3))
    model[0].weight.requires_grad_(False)
    model[1].bias.requires_grad_(False)
    batch = compare(model, torch.randn(4, 5))
    assert len(batch.sums) == 4


def test_bias_only_training():
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    assert len(compare(model, torch.randn(4, 5)).sums) == 2


def test_large_vocabulary_needs_no_dense_gradient():
    """A dense per-example gradient would take 50000 * 8 * 256 * 4 bytes = 400 MB for each batch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50_000, 8), Mean(), nn.Linear(8, 1))
    ids = torch.randint(0, 40, (256, 60))
    engine = Gradients(model)
    losses = model(ids).squeeze(1)
    with torch.profiler.profile(profile_memory=True) as profile:
        engine.clipped_sum(losses, FlatClip(1.0))
    largest = max(event.cpu_memory_usage for event in profile.events())
    assert largest < 120_000_000
