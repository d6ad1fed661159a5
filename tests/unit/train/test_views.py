"""Several rows of the model for each example, in a run: one gradient, one clip, one record."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.train import (
    CropAndFlip,
    DiscreteGaussianNoise,
    Evaluation,
    FlatClip,
    GaussianNoise,
    Gradients,
    OneByOne,
    PoissonSampler,
    RunFolder,
    StandardConv2d,
    Trainer,
    accuracy,
    check_model,
    check_run,
    noisy_sgd,
)
from tightrope.train.augment import losses_of_views
from tightrope.train.average import Average
from tightrope.train.gradients.owners import Owners

VIEWS, CLIP = 3, 0.2


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))


def views_of(x):
    """(B, 3, 5): each example as it is, turned round, and halved."""
    return torch.stack([x, x.flip(1), x / 2], 1)


def losses_of(model, x, y):
    rows = model(views_of(x).flatten(0, 1))
    return cross_entropy(rows, y.repeat_interleave(VIEWS), reduction="none").view(-1, VIEWS)


def made(model, **parts):
    settings = {
        "learning_rate": 1.0, "sampler": PoissonSampler(1.0), "clip": FlatClip(CLIP),
        "noise": GaussianNoise(0.0), "expected_batch_size": 60, "views": VIEWS,
    }  # fmt: skip
    return noisy_sgd(model, **(settings | parts))


def moved(run, data, losses=losses_of, **how):
    """What one step without noise does to the weights, per example."""
    before = nn.utils.parameters_to_vector(run.model.parameters()).detach().clone()
    for x, y in run.batches(data, steps=1, **how):
        run.step(losses(run.model, x, y))
    after = nn.utils.parameters_to_vector(run.model.parameters()).detach()
    return (before - after) * run.expected_batch_size


@pytest.fixture
def truth(data):
    """One example at a time: the gradient of the mean over its views, clipped."""
    model, total = network(), 0.0
    for x, y in zip(*data, strict=True):
        loss = losses_of(model, x[None], y[None]).mean()
        gradient = nn.utils.parameters_to_vector(torch.autograd.grad(loss, model.parameters()))
        total = total + gradient * min(1.0, CLIP / float(gradient.norm()))
    return total


@pytest.mark.parametrize("micro_batch", [None, 7, 1])
def test_the_step_clips_the_mean_over_the_views(data, truth, micro_batch):
    found = moved(made(network()), data, micro_batch=micro_batch)
    torch.testing.assert_close(found, truth, rtol=1e-3, atol=1e-5)


def test_losses_may_be_averaged_already(data, truth):
    found = moved(made(network()), data, lambda *b: losses_of(*b).mean(1))
    torch.testing.assert_close(found, truth, rtol=1e-3, atol=1e-5)
    whole, mean = (
        moved(made(network(), clip=FlatClip(99.0)), data, losses)  # too far away to clip anything
        for losses in (losses_of, lambda *b: losses_of(*b).mean(1))
    )
    torch.testing.assert_close(whole, mean)


def test_a_model_may_lay_the_views_side_by_side_itself(data, truth):
    class Inside(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()

        def forward(self, x):  # (B, K, 5) -> (B, K, 2)
            return self.inner(x.flatten(0, 1)).unflatten(0, x.shape[:2])

    def losses(model, x, y):
        rows = model(views_of(x)).transpose(1, 2)
        return cross_entropy(rows, y[:, None].expand(-1, VIEWS), reduction="none")

    torch.testing.assert_close(moved(made(Inside()), data, losses), truth, rtol=1e-3, atol=1e-5)


def test_one_by_one_and_strict_runs_have_views_too(data, truth):
    model = network()
    found = moved(made(model, gradients=OneByOne(model)), data, micro_batch=1)
    torch.testing.assert_close(found, truth, rtol=1e-3, atol=1e-5)
    strict = made(network(), arithmetic="strict", noise=DiscreteGaussianNoise(1e-3))
    assert strict.arithmetic.rho == 0
    torch.testing.assert_close(moved(strict, data), truth, rtol=1e-2, atol=1e-2)


def test_the_captured_step_takes_views(data, truth):
    run = made(network())
    with pytest.warns(UserWarning, match="eagerly"):  # on the CPU
        captured = run.capture(lambda x, y: losses_of(run.model, x, y))
    before = nn.utils.parameters_to_vector(run.model.parameters()).detach().clone()
    for batch in run.batches(data, steps=1):
        captured(*batch)
    after = nn.utils.parameters_to_vector(run.model.parameters()).detach()
    torch.testing.assert_close((before - after) * 60, truth, rtol=1e-3, atol=1e-5)


def test_examples_that_only_fill_up_a_batch_add_nothing(data, truth):
    model, filler = network(), 4
    x, y = (torch.cat([part, part[:1].expand(filler, *part.shape[1:])]) for part in data)
    engine = Gradients(model, views=VIEWS)
    present = torch.arange(len(x)) < len(x) - filler
    found = engine.clipped_sum(losses_of(model, x, y).mean(1), FlatClip(CLIP), present=present)
    sums = torch.cat([s.reshape(-1) for s in found.sums])
    torch.testing.assert_close(sums, truth, rtol=1e-3, atol=1e-5)


def test_the_account_is_that_of_one_view(data):
    one, three = made(network(), views=1), made(network())
    assert one.process == three.process and one.sensitivity_charged == three.sensitivity_charged
    assert three.settings()["views"] == VIEWS and "views" not in one.settings()
    assert three.record().facts().settings["views"] == VIEWS


def test_an_example_with_a_view_that_is_not_finite_is_dropped_whole(data):
    x, y = data[0].clone(), data[1]
    x[4] = torch.inf
    keep = torch.arange(len(x)) != 4
    clean = moved(made(network()), (x[keep], y[keep]))
    torch.testing.assert_close(moved(made(network()), (x, y)), clean, rtol=1e-4, atol=1e-6)


# ---- what is refused -----------------------------------------------------------------------------
def test_wrong_numbers_of_losses_are_refused(data):
    for change, words in (
        (lambda each: each.flatten(), r"losses.view\(-1, 3\)"),
        (lambda each: each[:, :2], "one loss for each view"),
        (lambda each: each.mean(), "single number"),
    ):
        with pytest.raises(InvalidInput, match=words):
            moved(made(network()), data, lambda *b, f=change: f(losses_of(*b)))


def test_a_model_that_ran_on_other_rows_is_refused(data):
    def plain(model, x, y):
        return cross_entropy(model(x), y, reduction="none")

    with pytest.raises(InvalidInput, match=r"must run on 180 rows.*ran on 60"):
        moved(made(network()), data, plain)


def test_views_in_another_order_are_refused(data):
    def crossed(model, x, y):
        rows = model(views_of(x).transpose(0, 1).flatten(0, 1))
        return cross_entropy(rows, y.repeat(VIEWS), reduction="none").view(VIEWS, -1).t()

    with pytest.raises(ModelNotPrivate, match="side by side"):
        moved(made(network()), data, crossed)


def test_views_that_mix_examples_are_refused(data):
    def mixed_up(model, x, y):
        return losses_of(model, (x + x.roll(1, 0)) / 2, y)

    with pytest.raises(ModelNotPrivate, match="other examples of the batch"):
        for x, y in (run := made(network())).batches(data, steps=2):
            run.step(mixed_up(run.model, x, y))


@pytest.mark.parametrize("mean", [False, True])
def test_rows_side_by_side_without_views_are_told_of_them(data, mean):
    def rows(model, x, y):
        each = losses_of(model, x, y)
        return each.mean(1) if mean else each.flatten()

    with pytest.raises((InvalidInput, ModelNotPrivate), match="make the run with views=3"):
        moved(made(network(), views=1), data, rows)


def test_an_engine_for_other_views_is_refused():
    model = network()
    with pytest.raises(InvalidInput, match="Make it with views=3"):
        made(model, gradients=Gradients(model))


def test_owners_that_name_nobody_are_refused():
    with pytest.raises(InvalidInput, match="vector of int64"):
        Owners.of(torch.zeros(3), 2)
    with pytest.raises(InvalidInput, match="numbers from 0 to 2"):
        Owners.of(torch.tensor([0, 2]), 2)
    model = network()
    engine = Gradients(model)
    rows = model(torch.randn(3, 5)).sum(1)
    with pytest.raises(InvalidInput, match="4 examples"):
        engine.clipped_sum(rows, FlatClip(1.0), owners=Owners(4, 1))


def test_owners_of_one_row_each_in_any_order():
    torch.manual_seed(0)
    model, order, x = network(), torch.tensor([2, 0, 3]), torch.randn(3, 5)
    engine = Gradients(model)
    losses = model(x).sum(1)
    mine = torch.zeros(4).index_copy(0, order, losses)  # nobody's row belongs to example 1
    found = engine.clipped_sum(mine, FlatClip(0.3), owners=Owners.of(order, 4))
    plain = engine.clipped_sum(model(x).sum(1), FlatClip(0.3))
    assert found.examples == 4 and float(found.norms[1]) < 1e-15
    torch.testing.assert_close(found.norms[order], plain.norms.to(found.norms), rtol=1e-3, atol=0)
    for a, b in zip(found.sums, plain.sums, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("side", [5, 19])  # tap by tap, and example by example
def test_rows_of_a_depthwise_convolution_are_added_before_clipping(side):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 6, 3, groups=3)), torch.randn(5, 3, side, side)
    order, clip = torch.tensor([1, 0, 1, 0, 1]), FlatClip(0.3)
    truth = 0.0
    for example in (0, 1):
        loss = model(x[order == example]).square().flatten(1).mean(1).sum()
        g = nn.utils.parameters_to_vector(torch.autograd.grad(loss, model.parameters()))
        truth = truth + g * min(1.0, 0.3 / float(g.norm()))
    engine = Gradients(model)
    rows = model(x).square().flatten(1).mean(1)
    mine = torch.zeros(2).index_add(0, order, rows)
    found = engine.clipped_sum(mine, clip, owners=Owners.of(order, 2))
    sums = torch.cat([total.reshape(-1) for total in found.sums])
    torch.testing.assert_close(sums, truth, rtol=1e-3, atol=1e-5)


# ---- in a Trainer --------------------------------------------------------------------------------
def pictures(count=40):
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(count) % 2
    images = torch.randn(count, 2, 6, 6, generator=generator) + 3 * labels[:, None, None, None]
    return images, labels


def small_net():
    torch.manual_seed(0)
    return nn.Sequential(
        StandardConv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)
    )


def losses(outputs, labels):
    return cross_entropy(outputs, labels, reduction="none")


def test_views_are_pieces_of_the_reflected_image():
    torch.manual_seed(0)
    images = torch.arange(2 * 36).view(2, 1, 6, 6).to(torch.uint8)
    views = CropAndFlip(padding=2)(images, 50)
    assert views.shape == (2, 50, 1, 6, 6) and views.dtype is torch.uint8
    wide = nn.functional.pad(images, [2] * 4, mode="reflect")
    for own, found in zip(wide, views, strict=True):
        pieces = [own[:, i : i + 6, j : j + 6] for i in range(5) for j in range(5)]
        allowed = {tuple(p.flatten().tolist()) for one in pieces for p in (one, one.flip(2))}
        seen = {tuple(view.flatten().tolist()) for view in found}
        assert seen <= allowed and len(seen) > 20
    assert torch.equal(CropAndFlip(0, flip=False)(images, 1)[:, 0], images)


def test_each_view_has_the_label_of_its_example():
    x, y = pictures(8)
    model = small_net()
    found = losses_of_views(model, losses, (x, y), 3, lambda images, _: views_of_images(images))
    for own, image, label in zip(found, x, y, strict=True):
        alone = losses(model(views_of_images(image[None])[0]), label.expand(3))
        torch.testing.assert_close(own, alone)


@pytest.mark.parametrize("folder", [False, True])
def test_a_trainer_augments_averages_and_schedules(tmp_path, folder):
    data = pictures()

    def trainer():
        run = made(
            small_net(), sampler=PoissonSampler(0.5), noise=GaussianNoise(0.5),
            expected_batch_size=20,
        )  # fmt: skip
        schedule = torch.optim.lr_scheduler.StepLR(run.optimizer, 5, 0.5)
        return Trainer(
            run, losses, delta=1e-3, augment=CropAndFlip(1), average=0.9, schedule=schedule,
            evaluation=Evaluation(data, accuracy, every=10), progress=False,
            folder=RunFolder(tmp_path / "run") if folder else None,
        )  # fmt: skip

    first = trainer()
    outcome = first.fit(data, steps=10)
    assert first.run.optimizer.param_groups[0]["lr"] == 0.25
    mean, own = first.averaged(), dict(first.run.model.named_parameters())
    shown = copy.deepcopy(first.run.model).eval()
    shown.load_state_dict(mean)
    assert outcome.measured == {10: pytest.approx(float(accuracy(shown(data[0]), data[1]).mean()))}
    assert mean.keys() == own.keys() and not torch.equal(mean["0.weight"], own["0.weight"])
    if folder:
        first._folder.close()
        again = trainer()
        again.fit(data, steps=15)
        assert again.run.steps == 15 and again.run.optimizer.param_groups[0]["lr"] == 0.125


def test_the_average_is_the_running_mean_of_the_released_weights():
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    average, told, expected = Average(model, optimizer, 0.5), [], None
    for step in range(1, 6):
        model.weight.grad = torch.ones(1, 1)
        optimizer.step()
        average.update(step)
        decay, now = min(0.5, (1 + step) / (10 + step)), model.weight.item()
        expected = now if expected is None else decay * expected + (1 - decay) * now
        told.append(float(average.weights()["weight"]) - expected)
    assert max(map(abs, told)) < 1e-6


def test_inputs_may_come_as_views():
    x, y = pictures()
    run = made(small_net(), expected_batch_size=40)
    Trainer(run, losses, delta=1e-3, progress=False).fit((views_of_images(x), y), steps=1)
    assert run.steps == 1


def views_of_images(x):
    return torch.stack([x, x.flip(3), x.flip(2)], 1)


def test_a_trainer_refuses_views_that_mix_and_inputs_without_views():
    x, y = pictures()

    def mixup(images, views):
        return ((images + images.roll(1, 0)) / 2)[:, None].expand(-1, views, -1, -1, -1)

    with pytest.raises(ModelNotPrivate, match="mixup"):
        run = made(small_net())
        Trainer(run, losses, delta=1e-3, progress=False, augment=mixup).fit((x, y), steps=1)
    with pytest.raises(InvalidInput, match=r"augment=CropAndFlip\(\)"):
        Trainer(made(small_net()), losses, delta=1e-3, progress=False).fit((x, y), steps=1)
    with pytest.raises(InvalidInput, match="into your own hands"):
        run = made(small_net())
        loss = lambda outputs: outputs.sum(1)  # noqa: E731
        Trainer(run, loss, delta=1e-3, progress=False, augment=CropAndFlip(1)).fit(x, steps=1)
    with pytest.raises(InvalidInput, match="decay"):
        Trainer(made(small_net()), losses, delta=1e-3, average=1.0)
    with pytest.raises(InvalidInput, match="keeps no average"):
        Trainer(made(small_net()), losses, delta=1e-3).averaged()


# ---- the doctor ----------------------------------------------------------------------------------
def test_the_doctor_takes_an_example_with_its_views(data):
    run = made(network(), sampler=PoissonSampler(0.3), noise=GaussianNoise(1.0))
    loss = lambda x, y: losses_of(run.model, x, y)  # noqa: E731
    diagnosis = check_run(run, loss, data, steps=8)
    assert diagnosis.healthy, str(diagnosis)
    diagnosis = check_model(network(), losses_of, data, clip=FlatClip(CLIP), views=VIEWS)
    assert diagnosis.healthy, str(diagnosis)


def test_the_doctor_finds_views_that_are_clipped_one_by_one(data):
    """An engine that takes every view for an example lets one record move the sum three times."""
    model = network()

    class EachView:
        views = VIEWS

        def __init__(self):
            self._inner = Gradients(model)
            self.names, self.parameters = self._inner.names, self._inner.parameters

        def clipped_sum(self, losses, clip, **how):
            rows = self._inner._recorder.uses[0].inputs[0]
            self._inner.forget()
            each = model(rows).square().sum(1)
            return self._inner.clipped_sum(each, clip)

        def __getattr__(self, name):
            return getattr(self._inner, name)

    found = check_model(
        model, losses_of, data, clip=FlatClip(CLIP), views=VIEWS, gradients=EachView()
    )
    assert any(fault.check == "clip bound" for fault in found.faults), str(found)
