"""Hole D1: padding to the longest of the batch that a model takes for data."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, dropout
from torch.nn.utils.rnn import (
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
    pad_sequence,
)

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.train import FlatClip, GaussianNoise, PoissonSampler, Trainer, noisy_sgd
from tightrope.train.feed import as_rows
from tightrope.train.gradients import Gradients
from tightrope.train.independence import Recheck, check_independent_losses, collated_apart


class Sentences:
    """Items of different lengths: (ids, label)."""

    def __init__(self, count=40):
        chance = torch.Generator().manual_seed(0)
        lengths = torch.randint(2, 9, (count,), generator=chance)
        self.ids = [torch.randint(1, 11, (int(n),), generator=chance) for n in lengths]

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return self.ids[i], int(self.ids[i][0] % 2)


def padded(items):
    ids = pad_sequence([x for x, _ in items], batch_first=True)
    return ids, torch.tensor([len(x) for x, _ in items]), torch.tensor([y for _, y in items])


def packed(items):
    return pack_sequence([x for x, _ in items], enforce_sorted=False), torch.tensor(
        [y for _, y in items]
    )


class Network(nn.Module):
    def __init__(self, kind, rate=0.0):
        super().__init__()
        self.table, self.head, self.kind = nn.Embedding(11, 4), nn.Linear(4, 2), kind
        self.memory = nn.GRU(4, 4, batch_first=True)
        self.drop, self.rate = nn.Dropout(rate), rate

    def forward(self, ids, lengths=None):
        x = self.drop(self.table(ids))
        x = dropout(x, self.rate, self.training and self.drop.training)
        inside = (torch.arange(ids.shape[1]) < lengths[:, None])[:, :, None]
        if self.kind == "last output":
            return self.head(self.memory(x)[0][:, -1])
        if self.kind == "mean of all":
            return self.head(x.mean(1))
        if self.kind == "masked mean":
            return self.head((x * inside).sum(1) / lengths[:, None])
        ends = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        out, last = self.memory(ends)
        if self.kind == "packed, last":
            return self.head(last[-1])
        return self.head(pad_packed_sequence(out, batch_first=True)[0].sum(1))


WRONG, RIGHT = ("last output", "mean of all"), ("masked mean", "packed, last", "packed, sum")


def made(model, **parts):
    settings = {
        "learning_rate": 0.1,
        "sampler": PoissonSampler(0.3),
        "clip": FlatClip(1.0),
        "noise": GaussianNoise(1.0),
        "expected_batch_size": 12,
    }
    return noisy_sgd(model, **(settings | parts))


def loop(run, steps, data=None, loss=None, **how):
    reports = []
    for ids, lengths, labels in run.batches(
        data or Sentences(), steps=steps, collate=padded, **how
    ):
        run.model.train()
        each = cross_entropy(run.model(ids, lengths), labels, reduction="none")
        reports.append(run.step(each if loss is None else loss(each, ids)))
    return reports


@pytest.mark.parametrize("kind", WRONG)
def test_padding_taken_for_data_is_refused_in_a_loop_of_ones_own(kind):
    torch.manual_seed(0)
    run = made(Network(kind))
    with pytest.raises(ModelNotPrivate, match="pack_padded_sequence"):
        loop(run, 3)
    assert run.ledger.released == 0


@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("kind", RIGHT)
def test_masked_and_packed_models_train(kind, rate):
    torch.manual_seed(0)
    run = made(Network(kind, rate))
    reports = loop(run, 4)
    assert run.steps == 4 and sum(report.released for report in reports) == 4
    assert run.record().private


def test_a_loss_over_the_padding_is_refused():
    """The model is right; the loss divides by the length of the longest."""
    torch.manual_seed(0)
    run = made(Network("masked mean"))
    with pytest.raises(ModelNotPrivate, match="left out"):
        loop(run, 2, loss=lambda each, ids: each / ids.shape[1])


def test_a_division_by_the_size_of_the_batch_is_refused_at_once():
    torch.manual_seed(0)
    run = made(Network("masked mean"))
    with pytest.raises(ModelNotPrivate, match="left out"):
        loop(run, 2, loss=lambda each, ids: each / len(ids))
    assert run.ledger.released == 0


def test_a_rehearsal_releases_nothing_and_must_be_stepped_on():
    torch.manual_seed(0)
    run = made(Network("masked mean"))
    weights = copy.deepcopy(run.model.state_dict())
    sizes = []
    for ids, lengths, labels in run.batches(Sentences(), steps=1, collate=padded):
        sizes.append(len(ids))
        if len(sizes) == 3:
            break
        run.step(cross_entropy(run.model(ids, lengths), labels, reduction="none"))
        for name, value in run.model.state_dict().items():
            assert torch.equal(value, weights[name])
    assert sizes[0] == 1 and sizes[1] == sizes[2] > 1 and run.ledger.released == 0
    run = made(Network("masked mean"))
    with pytest.raises(InvalidInput, match="Step on every batch"):
        for _ in run.batches(Sentences(), steps=1, collate=padded):
            pass


def test_later_batches_are_rehearsed_by_chance():
    torch.manual_seed(0)
    run = made(Network("masked mean"))
    loop(run, 3)
    run.company._steps.random = lambda: 0.0  # from now on each one
    run.model.kind = "mean of all"
    with pytest.raises(ModelNotPrivate):
        loop(run, 2)
    assert not run.record().private


def of_batch(model):
    def losses(batch):
        ids, lengths, labels = batch
        return cross_entropy(model(ids, lengths), labels, reduction="none")

    return losses


@pytest.mark.parametrize("kind", [*WRONG, *RIGHT])
def test_items_are_collated_alone_and_together(kind):
    torch.manual_seed(0)
    model = Network(kind)
    rows, device = as_rows(Sentences(), padded), torch.device("cpu")
    if kind in RIGHT:
        check_independent_losses(model, of_batch(model), rows, device)
    else:
        with pytest.raises(ModelNotPrivate, match="pad all examples to one public length"):
            check_independent_losses(model, of_batch(model), rows, device)


class OfTuple(nn.Module):
    """Takes the ids and lengths as one argument, as a Trainer gives them."""

    def __init__(self, kind):
        super().__init__()
        self.inner = Network(kind)

    def forward(self, given):
        return self.inner(*given)


def as_pairs(items):
    ids, lengths, labels = padded(items)
    return (ids, lengths), labels


def each(out, labels):
    return cross_entropy(out, labels, reduction="none")


@pytest.mark.parametrize("kind", ["last output", "packed, last"])
def test_the_trainer_collates(kind):
    torch.manual_seed(0)
    run = made(OfTuple(kind))
    trainer = Trainer(run, each, delta=1e-5, progress=False, collate=as_pairs)
    if kind in WRONG:
        with pytest.raises(ModelNotPrivate, match="attention mask"):
            trainer.fit(Sentences(), steps=2)
    else:
        assert trainer.fit(Sentences(), steps=2).steps == 2


def test_the_trainer_checks_again_by_chance():
    torch.manual_seed(0)
    run = made(OfTuple("masked mean"))
    loop_of = Trainer(run, each, delta=1e-5, progress=False, collate=as_pairs)
    loop_of.fit(Sentences(), steps=2)
    run.model.inner.kind = "mean of all"
    again = Recheck(loop_of._losses)
    again._chance.random = lambda: 0.0
    with pytest.raises(ModelNotPrivate):
        again.by_chance(run)
    assert not run.record().private


class Packed(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.table, self.memory = nn.Embedding(11, 3), layer
        self.head = nn.Linear(4 * (2 if layer.bidirectional else 1), 2)

    def forward(self, ids, lengths):
        x = self.table(ids)
        x = x if self.memory.batch_first else x.transpose(0, 1)
        ends = pack_padded_sequence(
            x, lengths, batch_first=self.memory.batch_first, enforce_sorted=False
        )
        out, last = self.memory(ends)
        out = pad_packed_sequence(out, batch_first=True)[0]
        last = last[0] if isinstance(last, tuple) else last
        return self.head(out.sum(1)) + last.square().sum((0, 2))[:, None]


@pytest.mark.parametrize("method", ["auto", "two-pass"])
@pytest.mark.parametrize("build", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True, "batch_first": True}]
)
def test_packed_sequences_have_the_gradients_of_each_sequence_alone(build, options, method):
    torch.manual_seed(0)
    model, clip = Packed(build(3, 4, **options)), FlatClip(0.2)
    items = [Sentences()[i] for i in range(6)]
    ids, lengths, _ = padded(items)

    def losses(inner, x, n):
        return inner(x, n).square().sum(1)

    exact = copy.deepcopy(model)
    expected = [torch.zeros_like(p) for p in exact.parameters()]
    for i in range(len(ids)):
        n = int(lengths[i])
        loss = losses(exact, ids[i : i + 1, :n], lengths[i : i + 1]).sum()
        grads = torch.autograd.grad(loss, list(exact.parameters()))
        norm = sum(g.square().sum() for g in grads).sqrt()
        for total, g in zip(expected, grads, strict=True):
            total += g * min(1.0, 0.2 / float(norm))
    engine = Gradients(model, method)
    found = engine.clipped_sum(losses(model, ids, lengths), clip).sums
    for name, mine, truth in zip(engine.names, found, expected, strict=True):
        torch.testing.assert_close(mine.float(), truth, rtol=3e-3, atol=1e-5, msg=name)


def test_packed_forward_passes_are_torchs_own():
    torch.manual_seed(0)
    layer = nn.LSTM(3, 4, num_layers=2, bidirectional=True)
    given = pack_sequence([torch.randn(n, 3) for n in (2, 5, 3)], enforce_sorted=False)
    state = tuple(torch.randn(4, 3, 4) for _ in range(2))
    truth, ends = layer(given, state)
    Gradients(layer)
    out, found = layer(given, state)
    torch.testing.assert_close(out.data, truth.data)
    assert torch.equal(out.batch_sizes, truth.batch_sizes)
    for a, b in zip(found, ends, strict=True):
        torch.testing.assert_close(a, b)


class OfPacked(nn.Module):
    """Packing was done by the collation."""

    def __init__(self):
        super().__init__()
        self.memory, self.head = nn.GRU(1, 4), nn.Linear(4, 2)

    def forward(self, given):
        values = given._replace(data=given.data[:, None].float() / 10)
        return self.head(self.memory(values)[1][-1])


def test_collations_that_pack():
    torch.manual_seed(0)
    run = made(OfPacked())
    for ids, labels in run.batches(Sentences(), steps=3, collate=packed):
        run.step(cross_entropy(run.model(ids), labels, reduction="none"))
    assert run.steps == 3 and run.record().private
    Trainer(run, each, delta=1e-5, progress=False, collate=packed).fit(Sentences(), steps=5)


def test_collations_that_draw_at_random_are_cut_apart_instead():
    def masked(items):
        ids, lengths, labels = padded(items)
        return torch.where(torch.rand(ids.shape) < 0.3, 0, ids), lengths, labels

    whole, parts = collated_apart(as_rows(Sentences(), masked), range(4), torch.device("cpu"))
    for i, part in enumerate(parts):
        assert torch.equal(part[0][0], whole[0][i])


@pytest.mark.parametrize("masked", [True, False])
def test_the_trainer_of_hugging_face_looks_at_the_padding(masked, tmp_path):
    tf = pytest.importorskip("transformers")
    from tightrope.train.adapters.hugging_face import PrivateTrainer

    torch.manual_seed(0)
    config = tf.BertConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, num_labels=2, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = tf.BertForSequenceClassification(config)
    with torch.no_grad():
        for value in model.parameters():  # small random weights hardly attend to anything
            value.mul_(4)
    rows = [{"input_ids": x, "labels": y} for x, y in (Sentences()[i] for i in range(20))]

    def collate(items):
        ids = [item["input_ids"] for item in items]
        batch = {"input_ids": pad_sequence(ids, batch_first=True)}
        if masked:
            batch["attention_mask"] = pad_sequence([torch.ones(len(x)) for x in ids], True)
        return batch | {"labels": torch.tensor([item["labels"] for item in items])}

    arguments = tf.TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, report_to=[], use_cpu=True, disable_tqdm=True,
        remove_unused_columns=False,
    )  # fmt: skip
    trainer = PrivateTrainer(
        model=model, args=arguments, train_dataset=rows, data_collator=collate,
        sampler=PoissonSampler(0.3), clip=FlatClip(1.0), noise=GaussianNoise(1.0),
        expected_batch_size=6,
    )  # fmt: skip
    random.seed(0)
    if masked:
        trainer.train()
        assert trainer.run.steps == 2
    else:
        with pytest.raises(ModelNotPrivate, match="attention mask"):
            trainer.train()
