"""Losses in which examples meet are refused before they run; others are proved.

Black boxes: a model, a loss and a batch go in, a proof or a refusal comes out. What is proved is
run with one example replaced: no other loss, and no gradient of one, may change by a bit.
"""

from __future__ import annotations

import copy
import re
from collections import Counter

import programs
import programs_apart
import programs_table
import pytest
import torch
import torch.utils._pytree as pytree
from programs import B, C, D
from torch import Tensor, fx

from tightrope.train.program import Mixes, NotCaptured, Unknown, capture, prove

pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns about what these programs do

MEETING = programs.CASES + programs_table.CASES
# Of reductions, of which each is a rule of its own (test_rules.py), a third; `slow` has all.
_REDUCED = [case for case in MEETING if case.name.startswith("reduced")]
QUICK = [case for case in MEETING if case not in _REDUCED or case in _REDUCED[::3]]
APART = programs_apart.CASES
REFUSALS = (Mixes, Unknown, NotCaptured)


def named(cases):
    return pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    programs.forget()
    yield
    programs.forget()


def replaced(batch, row, other):
    """The batch with one example of another batch."""

    def put(x, new):
        return torch.cat([x[:row], new[row : row + 1], x[row + 1 :]])

    return pytree.tree_map(put, batch, other)


def gradients(losses, model):
    """Of each loss, for all parameters, as one row."""
    weights = [p for p in model.parameters() if p.requires_grad and p.grad_fn is None]
    rows = []
    for loss in losses:
        found = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
        rows.append(torch.cat([torch.zeros(1), *(g.flatten() for g in found if g is not None)]))
    return torch.stack(rows)


def run(program, batch, seed=0):
    """The losses of the graph, with live weights."""
    leaves = iter(x for x in pytree.tree_leaves(batch) if isinstance(x, Tensor))
    given = [
        next(leaves) if place.kind == "batch" else program.tensor(place) for place in program.places
    ]
    torch.manual_seed(seed)
    interpreter = fx.Interpreter(program.module, garbage_collect_values=False)
    interpreter.run(*given)
    losses = program.losses[0] if isinstance(program.losses, tuple) else program.losses
    return interpreter.env[losses]


def changed_by_another(losses_of, model, batch, other):
    """The examples whose losses or gradients change when another one is replaced."""

    def answers(given):
        losses = losses_of(given)
        return torch.cat([losses.detach()[:, None], gradients(losses, model)], 1)

    before, changed = answers(batch), set()
    for row in range(len(before)):
        after = answers(replaced(batch, row, other))
        changed |= {i for i in range(len(before)) if i != row and not same(before[i], after[i])}
    return changed


def same(a, b):
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def snapshot(model):
    """What a proof must leave as it was."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return (
        {
            name: (id(t), t._version, t.requires_grad, t.grad, bool(t._backward_hooks))
            for name, t in tensors.items()
        },
        {name: t.detach().clone() for name, t in tensors.items()},
        [
            (name, module.training, len(module._forward_hooks), len(module._forward_pre_hooks),
             len(module._backward_hooks), sorted(vars(module)))
            for name, module in model.named_modules()
        ],
    )  # fmt: skip


def assert_untouched(model, before):
    after = snapshot(model)
    assert after[0] == before[0] and after[2] == before[2]
    assert all(torch.equal(after[1][name], value) for name, value in before[1].items())


def proved(case, model, batch, rows):
    program = capture(model, case.loss, batch, rows=rows)
    prove(program, rows)
    return program


def outcome(case, rows=B):
    """How a case is refused, or None where it is proved and examples stay apart; and the words."""
    model = case.model()
    batch, other = case.batch(rows), case.batch(rows)
    before = snapshot(model)
    try:
        program = proved(case, model, batch, rows)
    except REFUSALS as refusal:
        assert_untouched(model, before)
        return type(refusal).__name__, str(refusal)
    assert_untouched(model, before)
    changed = changed_by_another(lambda given: run(program, given), model, batch, other)
    assert not changed, f"proved, and examples {changed} change with another one"
    return None, ""


@named(QUICK)
def test_examples_that_meet_are_refused(case):
    kind, words = outcome(case)
    if kind is None:
        assert case.may_run, "examples meet in this loss, and it was proved"
        return
    assert kind in case.refused, f"{kind}: {words}"
    if kind == "Mixes":
        assert re.search(r"programs\w*\.py", words), f"no line of the user's: {words}"


@named(APART)
def test_examples_that_do_not_meet_are_proved(case):
    kind, words = outcome(case)
    assert kind is None, f"{kind}: {words}"


@pytest.mark.slow
@pytest.mark.parametrize("rows", [2, C, B, D])
@named([case for case in MEETING if case.how == "others"])
def test_nothing_that_mixes_is_proved_where_sizes_coincide(case, rows):
    """At some sizes a program does nothing wrong; `outcome` asserts that no example changes."""
    try:
        outcome(case, rows)
    except (RuntimeError, ValueError, IndexError):  # the program itself wants another size
        return


# Are the programs what they are said to be?


def of_several(case, batches):
    """Losses of the last of these batches, by a new model, and what the model holds then."""
    torch.manual_seed(1)
    programs.forget()
    model = case.model()
    for batch in batches:
        torch.manual_seed(2)
        losses = case.loss(model, *copy.deepcopy(batch)).detach()
    grads = {f"{k}.grad": p.grad for k, p in model.named_parameters() if p.grad is not None}
    return [losses, *model.state_dict().values(), *grads.values()]


def meets_others(case, batch, other):
    model = case.model()

    def losses_of(given):
        torch.manual_seed(1)
        programs.forget()
        return case.loss(model, *copy.deepcopy(given))

    if changed_by_another(losses_of, model, batch, other):
        return True
    together = gradients([losses_of(batch).sum()], model)[0]  # on the way back alone
    ones = [pytree.tree_map(lambda x, i=i: x[i : i + 1], batch) for i in range(B)]
    alone = sum(gradients([losses_of(one).sum()], model)[0] for one in ones)
    return float((together - alone).norm()) > 1e-3 * float(alone.norm())


def meets_by_place(case, batch, _):
    turned = pytree.tree_map(lambda x: x.roll(1, 0), batch)
    before, after = of_several(case, [batch])[0], of_several(case, [turned])[0]
    return float((before.roll(1, 0) - after).abs().max()) > 1e-4


def meets_by_size(case, batch, _):
    if case.name.endswith("gradients alone"):
        return True
    shorter = pytree.tree_map(lambda x: x[:4], batch)
    before, after = of_several(case, [batch])[0], of_several(case, [shorter])[0]
    return float((before[:4] - after).abs().max()) > 1e-4


def meets_by_memory(case, batch, other):
    one, two = of_several(case, [batch, batch]), of_several(case, [other, batch])
    return not all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


SHOWN = {
    "others": meets_others,
    "place": meets_by_place,
    "size": meets_by_size,
    "memory": meets_by_memory,
}


@named([case for case in MEETING if case.shown])
def test_examples_meet_as_it_is_said(case):
    assert SHOWN[case.how](case, case.batch(B), case.batch(B))


@named(APART)
def test_examples_stay_apart_as_it_is_said(case):
    model = case.model()
    state = copy.deepcopy(dict(model.named_buffers()))

    def losses_of(given):
        torch.manual_seed(1)
        for name, value in state.items():  # public counters begin anew
            model.get_buffer(name).data.copy_(value)
        return case.loss(model, *copy.deepcopy(given))

    assert not changed_by_another(losses_of, model, case.batch(B), case.batch(B))


def test_there_are_as_many_programs_as_promised_and_no_name_twice():
    names = Counter(case.name for case in MEETING + APART)
    assert [name for name, count in names.items() if count > 1] == []
    assert len(MEETING) >= 300 and len(programs_table.CASES) >= 40 and len(APART) >= 50
