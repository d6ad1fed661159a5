"""Rounding that looks like mixing: a number at a kink, on either side by the size of its batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope.errors import ModelNotPrivate
from tightrope.train import FlatClip, GaussianNoise, PoissonSampler, Trainer, noisy_sgd
from tightrope.train.feed import as_rows
from tightrope.train.independence import ROUNDING, check_independent_losses, mixing_of_losses

CPU, SMALLEST = torch.device("cpu"), torch.finfo(torch.float32).eps


class AtKink(nn.Module):
    """Examples whose first number is positive lie where rounding decides.

    The rounding of its precision moves them up by as much as the batch has rows. share: of the
    gradient that is behind the kink. shorter: does the model cast what it is given?
    """

    def __init__(self, share=0.2, *, shorter=True, mixed=0.0):
        super().__init__()
        self.head, self.beside = nn.Linear(4, 2), nn.Linear(4, 2)
        self.share, self.shorter, self.mixed = share, shorter, mixed

    def forward(self, x):
        x = x.float() if self.shorter else x
        rounding = torch.finfo(x.dtype).eps * len(x)
        z = self.beside(x)
        behind = torch.relu(z - z.detach() + rounding - 3 * SMALLEST) * (x[:, :1] > 0)
        return self.head(x) + self.share * behind + self.mixed * self.head(x).mean(0)


def losses_of(model):
    return lambda batch: cross_entropy(model(batch[0]), batch[1], reduction="none")


@pytest.fixture
def data():
    torch.manual_seed(0)
    return torch.randn(40, 4).abs(), torch.randint(0, 2, (40,))


@pytest.mark.parametrize("shorter", [True, False])
def test_float64_tells_a_kink_from_mixing(data, shorter):
    torch.manual_seed(1)
    rows, model = as_rows(data), AtKink(shorter=shorter)
    assert mixing_of_losses(model, losses_of(model), rows, CPU) < 1e-9
    check_independent_losses(model, losses_of(model), rows, CPU)
    model.mixed = 0.1
    assert mixing_of_losses(model, losses_of(model), rows, CPU) > ROUNDING
    with pytest.raises(ModelNotPrivate):
        check_independent_losses(model, losses_of(model), rows, CPU)


def test_the_model_is_left_as_it_was(data):
    model = AtKink()
    before = {name: (p, p.dtype, p._version) for name, p in model.named_parameters()}
    mixing_of_losses(model, losses_of(model), as_rows(data), CPU)
    after = {name: (p, p.dtype, p._version) for name, p in model.named_parameters()}
    assert before.keys() == after.keys()
    assert all(before[name][0] is after[name][0] for name in before)
    assert all(before[name][1:] == after[name][1:] for name in before)


def test_what_cannot_run_in_float64_is_judged_by_float32(data):
    class OnlyShort(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = AtKink(shorter=False)

        def forward(self, x):
            if x.dtype is torch.float64:
                raise RuntimeError("no such kernel")
            return self.inner(x)

    model = OnlyShort()
    with pytest.raises(ModelNotPrivate):
        check_independent_losses(model, losses_of(model), as_rows(data), CPU)


def in_float8(logits):
    """One scale for the whole batch; the gradient as if nothing were rounded."""
    logits = logits.bfloat16().to(logits.dtype)
    scale = logits.detach().abs().max() / 448
    short = (logits / scale).to(torch.float8_e4m3fn).to(logits.dtype) * scale
    return logits + (short - logits).detach()


def of_one_precision(logits):
    return logits - logits.mean(0) if logits.dtype is torch.float32 else logits


def sized(logits):
    return logits * len(logits)


def sized_in_one_precision(logits):
    return sized(logits) if logits.dtype is torch.float32 else logits


def lost_digits(logits):
    """Each is a difference of sums over those before it, of which the first is large."""
    far = torch.zeros_like(logits)
    far[0] = 1e5
    sums = (logits + far).cumsum(0)
    return torch.cat([sums[:1], sums[1:] - sums[:-1]]) - far


@pytest.mark.parametrize(
    "mix", [in_float8, of_one_precision, sized, sized_in_one_precision, lost_digits]
)
def test_no_mixing_is_acquitted_in_float64_although_some_is_not_there(data, mix):
    torch.manual_seed(1)
    model = nn.Linear(4, 2)
    for _ in range(10):
        with pytest.raises(ModelNotPrivate):
            check_independent_losses(
                model,
                lambda batch: cross_entropy(mix(model(batch[0])), batch[1], reduction="none"),
                as_rows(data),
                CPU,
            )


def centred(out, targets):
    targets -= targets.mean(0)
    return (out - targets).square().mean(1)


def test_a_loss_that_writes_to_its_batch_hides_nothing(data):
    """Once all examples have been alone, their targets are zero for good."""
    torch.manual_seed(1)
    run = noisy_sgd(
        nn.Linear(4, 2),
        learning_rate=0.1,
        sampler=PoissonSampler(0.5),
        clip=FlatClip(1.0),
        noise=GaussianNoise(1.0),
        expected_batch_size=20,
    )
    trainer = Trainer(run, centred, delta=1e-5, progress=False)
    with pytest.raises(ModelNotPrivate):
        trainer.fit((data[0], torch.randn(40, 2)), steps=1)
    assert run.ledger.released == 0


def test_nor_is_it_refused_for_that_alone(data):
    def halved(batch):
        batch[0].mul_(0.5)
        return cross_entropy(model(batch[0]), batch[1], reduction="none")

    model = nn.Linear(4, 2)
    check_independent_losses(model, halved, as_rows(data), CPU)


def collated(items):
    return torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])


def trained(model, data, places, weights=lambda x: 1.0):
    """A loop with a collation; places: of the examples that a rehearsal takes alone, in turn."""
    run = noisy_sgd(
        model,
        learning_rate=0.1,
        sampler=PoissonSampler(1.0),
        clip=FlatClip(1.0),
        noise=GaussianNoise(1.0),
        expected_batch_size=40,
    )
    given = iter(places)
    choose = run.company._places.choice
    run.company._places.choice = lambda some: next(given) if len(some) == 40 else choose(some)
    items = list(zip(*data, strict=True))
    for x, y in run.batches(items, steps=2, collate=collated):
        run.step(weights(x) * cross_entropy(run.model(x), y, reduction="none"))
    return run


def test_a_loop_is_refused_for_what_several_examples_show(data):
    torch.manual_seed(1)
    x, y = data
    x[3:, 0] *= -1.0  # which are at no kink
    assert trained(AtKink(0.02), (x, y), [0, 1, 2, 5, 5, 5, 5, 5]).record().private
    assert trained(AtKink(0.02), (x, y), [5]).record().private  # nothing to look at again
    with pytest.raises(ModelNotPrivate):  # as what is mixed by so little is at many an example
        trained(AtKink(0.02), (x, y), [0, 5, 1, 5, 2, 5, 5, 0])
    with pytest.raises(ModelNotPrivate):  # more than a kink moves
        trained(AtKink(2.0), (x, y), [0])


def test_mixing_in_half_precision_is_refused_for_what_one_example_shows(data):
    """It is mixed by more than a kink moves, or nobody sees it."""
    torch.manual_seed(1)
    x, y = data
    x[3:, 0] *= -1.0
    model = nn.Linear(4, 2)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ModelNotPrivate):
        trained(
            model,
            (x, y),
            [0, 5, 5, 5, 5, 5, 5, 5],
            lambda x: 1 + (len(x) > 1) * (x[:, 0] > 0) * 0.15,
        )
