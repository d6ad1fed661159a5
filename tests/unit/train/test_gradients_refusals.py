"""What is refused, and what the message says to do."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.train.clip import FlatClip
from tightrope.train.gradients import Gradients, check_examples_independent
from tightrope.train.gradients.one_by_one import OneByOne
from tightrope.train.gradients.reference import loop_clipped_sum

CLIP = FlatClip(1.0)


@pytest.mark.parametrize(
    ("model", "advice"),
    [
        (nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), "GroupNorm"),
        (nn.BatchNorm2d(3, affine=False), "GroupNorm"),
        (nn.SyncBatchNorm(3), "GroupNorm"),
        (nn.InstanceNorm1d(3, affine=True, track_running_stats=True), "track_running_stats=False"),
        (nn.Embedding(3, 2, max_norm=1.0), "max_norm"),
        (nn.Embedding(3, 2, scale_grad_by_freq=True), "scale_grad_by_freq"),
        (nn.EmbeddingBag(3, 2, mode="max"), "mode='sum'"),
        (nn.LSTM(3, 4, proj_size=2), "proj_size"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), "remove_parametrizations"),
    ],
)
def test_layers_that_cannot_be_private_are_refused(model, advice):
    if not any(p.requires_grad for p in model.parameters()):
        model = nn.Sequential(model, nn.Linear(3, 3))
    with pytest.raises(ModelNotPrivate, match=advice):
        Gradients(model)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(
    "model",
    [
        nn.LSTM(3, 4, proj_size=2, batch_first=True),
        nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)),
        nn.Embedding(9, 2, sparse=True),
    ],
)
def test_layers_that_only_have_no_rule_are_taken_one_by_one(model):
    def losses_of(inner, x):
        out = inner(x)
        return (out[0] if isinstance(out, tuple) else out).flatten(1).square().sum(1)

    x = torch.randn(4, 5, 3) if not isinstance(model, nn.Embedding) else torch.arange(8).view(4, 2)
    dense = copy.deepcopy(model)
    dense.sparse = False  # the loop stacks gradients
    expected = loop_clipped_sum(dense, losses_of, CLIP, x)
    engine = OneByOne(model)
    parts = [engine.clipped_sum(losses_of(model, x[i : i + 1]), CLIP).sums for i in range(4)]
    for mine, truth in zip(zip(*parts, strict=True), expected, strict=True):
        torch.testing.assert_close(sum(mine), truth, rtol=1e-4, atol=1e-6)


def test_one_reason_is_told_once_for_many_layers():
    model = nn.Sequential(*[nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)) for _ in range(9)])
    with pytest.raises(ModelNotPrivate, match=r"0.1, 1.1, 2.1 and 6 more \(BatchNorm1d") as told:
        Gradients(model)
    assert str(told.value).count("GroupNorm") == 1


def test_uninitialised_lazy_layer_is_refused():
    model = nn.LazyLinear(3)
    with pytest.raises(ModelNotPrivate, match="forward pass before"):
        Gradients(model)


def test_frozen_batch_norm_in_evaluation_mode_is_allowed():
    norm = nn.BatchNorm1d(3)
    norm.requires_grad_(False)
    norm.eval()
    engine = Gradients(nn.Sequential(norm, nn.Linear(3, 3)))
    assert engine.names == ["1.weight", "1.bias"]


def test_frozen_batch_norm_switched_back_to_training_is_caught():
    norm = nn.BatchNorm1d(3)
    norm.requires_grad_(False)
    model = nn.Sequential(nn.Linear(3, 3), norm.eval())
    engine = Gradients(model)
    model.train()
    with pytest.raises(ModelNotPrivate):
        engine.clipped_sum(model(torch.randn(4, 3)).square().sum(1), CLIP)


def test_model_without_trainable_parameters_is_refused():
    model = nn.Linear(3, 3).requires_grad_(False)
    with pytest.raises(ModelNotPrivate, match="trainable"):
        Gradients(model)


@pytest.mark.parametrize(
    ("reduce", "advice"),
    [
        (lambda v: v.mean(), "reduction='none'"),
        (lambda v: v.sum(), "reduction='none'"),
        (lambda v: v[:, None].expand(-1, 3), r"must be \(B,\)"),
        (lambda v: v.detach(), "carry no gradient"),
        (lambda v: v.mean().expand(4), "mixes the batch"),
        (lambda v: v - v.mean(), "mixes the batch"),
        (lambda v: v.tolist(), "floating tensor"),
    ],
)
def test_losses_of_the_wrong_kind_are_refused(reduce, advice):
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    engine = Gradients(model)
    values = reduce(model(torch.randn(4, 3)).squeeze(1))
    with pytest.raises((InvalidInput, ModelNotPrivate), match=advice):
        engine.clipped_sum(values, CLIP)


def test_contrastive_loss_is_refused():
    model = nn.Linear(3, 3)
    engine = Gradients(model)
    z = functional.normalize(model(torch.randn(4, 3)), dim=1)
    losses = functional.cross_entropy(z @ z.t(), torch.arange(4), reduction="none")
    with pytest.raises(ModelNotPrivate, match="mixes the batch"):
        engine.clipped_sum(losses, CLIP)


def test_time_first_layout_is_refused():
    model = nn.Linear(3, 3)
    engine = Gradients(model)
    losses = model(torch.randn(5, 4, 3)).square().sum((0, 2))  # batch second
    with pytest.raises(ModelNotPrivate):
        engine.clipped_sum(losses, CLIP)


def test_time_first_layout_with_as_many_positions_as_examples_is_refused():
    model = nn.Linear(3, 3)
    engine = Gradients(model)
    losses = model(torch.randn(4, 4, 3)).square().sum((0, 2))
    with pytest.raises(ModelNotPrivate):
        engine.clipped_sum(losses, CLIP)


def test_evaluation_mode_and_missing_forward_are_named():
    model = nn.Linear(3, 1)
    engine = Gradients(model)
    with pytest.raises(InvalidInput, match=r"model\.train\(\)"):
        engine.clipped_sum(model.eval()(torch.randn(4, 3)).squeeze(1), CLIP)
    losses = model.train()(torch.randn(4, 3)).squeeze(1)
    engine.clipped_sum(losses, CLIP)
    with pytest.raises(InvalidInput, match="once for each clipped_sum"):
        engine.clipped_sum(losses, CLIP)


def test_attaching_twice_is_refused_and_detaching_allows_it():
    model = nn.Linear(3, 1)
    engine = Gradients(model)
    with pytest.raises(InvalidInput, match="already belongs"):
        Gradients(model)
    engine.detach()
    Gradients(model).detach()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_forward_passes_without_gradients_do_not_pile_up():
    model = nn.Linear(3, 1)
    Gradients(model)
    with pytest.raises(InvalidInput, match=r"torch\.no_grad"):
        for _ in range(200):
            model(torch.randn(4, 3))


def test_stray_training_forward_changes_nothing():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), torch.randn(4, 3)
    engine = Gradients(model)
    expected = engine.clipped_sum(model(x).squeeze(1), CLIP)
    model(torch.randn(7, 3))
    again = engine.clipped_sum(model(x).squeeze(1), CLIP)
    for a, b in zip(expected.sums, again.sums, strict=True):
        torch.testing.assert_close(a, b)


def test_reentrant_checkpointing_is_refused_and_the_other_works():
    class Checkpointed(nn.Module):
        def __init__(self, reentrant):
            super().__init__()
            self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 1)
            self.reentrant = reentrant

        def forward(self, x):
            h = torch.tanh(self.first(x))
            return checkpoint(self.second, h, use_reentrant=self.reentrant)

    torch.manual_seed(0)
    x = torch.randn(4, 3)
    model = Checkpointed(True)
    with pytest.raises(ModelNotPrivate, match="use_reentrant=False"):
        Gradients(model).clipped_sum(model(x).squeeze(1), CLIP)
    for method in ("book-keeping", "two-pass"):
        other = Checkpointed(False)
        other.load_state_dict(model.state_dict())
        expected = torch.autograd.grad(
            torch.tanh(x @ other.first.weight.t() + other.first.bias)
            @ other.second.weight.t().sum(1),
            other.first.weight,
            torch.ones(4),
        )
        batch = Gradients(other, method).clipped_sum(other(x).squeeze(1), FlatClip(1e6))
        torch.testing.assert_close(batch.sums[0], expected[0])


def test_unknown_method_and_loss_scale_are_refused():
    with pytest.raises(InvalidInput, match="two-pass"):
        Gradients(nn.Linear(2, 2), "ghost")
    with pytest.raises(InvalidInput, match="power of two"):
        Gradients(nn.Linear(2, 2), loss_scale=3.0)


def test_unbatched_sequences_are_refused():
    model = nn.GRU(3, 4, batch_first=True)
    Gradients(model)
    with pytest.raises(InvalidInput, match="batch of one"):
        model(torch.randn(5, 3))
    attention = nn.MultiheadAttention(4, 2)
    Gradients(attention)
    with pytest.raises(InvalidInput, match="batch"):
        attention(*[torch.randn(5, 4)] * 3)


def test_leak_check_sees_batch_norm_and_contrastive_losses_and_passes_others():
    x = torch.randn(6, 3)
    assert not check_examples_independent(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), x)
    clean = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Dropout(0.5))
    state = torch.get_rng_state()
    assert check_examples_independent(clean, x)
    assert torch.equal(state, torch.get_rng_state())

    def contrastive(model, values):
        z = model(values)
        return functional.cross_entropy(z @ z.t(), torch.arange(6), reduction="none")

    assert not check_examples_independent(clean, x, losses_of=contrastive)
    with pytest.raises(InvalidInput, match="at least 2"):
        check_examples_independent(clean, x[:1])


def test_leak_check_leaves_running_statistics_alone():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    before = model[1].running_mean.clone()
    check_examples_independent(model, torch.randn(6, 3))
    assert torch.equal(before, model[1].running_mean)
