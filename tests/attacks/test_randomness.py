"""Randomness that repeats (holes B1 to B5): the same noise or the same draws in two releases."""

from __future__ import annotations

import copy
import json
import os
import pickle
import shutil
import threading

import numpy as np
import pytest
import torch

from tightrope.convex import Entropy
from tightrope.entropy import open_stream
from tightrope.errors import InvalidInput
from tightrope.estimators import PrivateLogisticRegression
from tightrope.evidence.verify import verify
from tightrope.train import (
    BallsInBinsSampler,
    DiscreteGaussianNoise,
    FixedSizeSampler,
    GaussianNoise,
    PoissonSampler,
    ShuffledSampler,
)
from tightrope.train.journal import digest_of
from tightrope.train.noise import key_generator


def noise_of(noise):
    total = torch.zeros(40)
    noise.add_([total], 1.0)
    return total.tolist()


SOURCES = {
    "words": (lambda: open_stream("x"), lambda s: s.words(8).tolist()),
    "cryptographic words": (
        lambda: open_stream("x", cryptographic=True),
        lambda s: s.words(8).tolist(),
    ),
    "noise": (lambda: GaussianNoise(1.0), noise_of),
    "discrete noise": (lambda: DiscreteGaussianNoise(1.0), noise_of),
    "poisson": (lambda: PoissonSampler(0.5), lambda s: s.draw(200).tolist()),
    "fixed size": (lambda: FixedSizeSampler(50, 200), lambda s: s.draw(200).tolist()),
    "shuffled": (lambda: ShuffledSampler(4), lambda s: s.draw(200).tolist()),
    "balls in bins": (lambda: BallsInBinsSampler(4), lambda s: s.draw(200).tolist()),
    "convex normal": (Entropy, lambda s: s.normal((5,)).tolist()),
    "convex coins": (Entropy, lambda s: s.included(200, 0.5).tolist()),
    "convex whole number": (Entropy, lambda s: s.whole_number(0, 2**60)),
    "convex uniform": (Entropy, lambda s: s.uniform()),
}


@pytest.fixture(params=SOURCES)
def source(request):
    """A source that has been used once, and how to use it again."""
    make, use = SOURCES[request.param]
    made = make()
    use(made)
    return made, use


def in_child(work):
    """The answer of a forked process, as json."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, json.dumps(work()).encode())
        except BaseException as error:
            os.write(writer, json.dumps(f"{type(error).__name__}: {error}").encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        told = json.load(answer)
    os.waitpid(child, 0)
    return told


def test_forked_processes_draw_apart(source):
    made, use = source
    seen = [in_child(lambda: use(made)) for _ in range(3)] + [use(made)]
    seen.append(in_child(lambda: in_child(lambda: use(made))))
    assert len({json.dumps(answer) for answer in seen}) == 5


@pytest.mark.parametrize(
    "clone", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))]
)
def test_copies_draw_apart(source, clone):
    made, use = source
    copies = [clone(made), clone(made), made]
    assert len({json.dumps(use(each)) for each in copies}) == 3


def test_threads_never_share_noise():
    noise, seen = GaussianNoise(1.0), []

    def work():
        for _ in range(40):
            seen.append(tuple(noise_of(noise)))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == len(set(seen)) == 8 * 40


def test_a_run_cannot_be_copied(small_run):
    for clone in (copy.deepcopy, pickle.dumps):
        with pytest.raises(InvalidInput, match="cannot be copied"):
            clone(small_run())


def test_a_run_that_began_is_not_continued_in_a_fork(small_run, take_steps):
    run = small_run()
    take_steps(run, 1)
    assert "forked copy" in in_child(lambda: take_steps(run, 1))
    take_steps(run, 1)
    assert run.steps == 2


def moves(run, take_steps, learning_rate):
    """The noisy sums of two steps without any example, read off the weights."""
    before = torch.cat([p.detach().reshape(-1) for p in run.model.parameters()])
    take_steps(run, 2)
    after = torch.cat([p.detach().reshape(-1) for p in run.model.parameters()])
    return (after - before) / learning_rate


def test_copies_of_a_run_folder_go_on_with_other_noise(small_run, take_steps, tmp_path):
    def make(name, rate):
        return small_run(learning_rate=rate, sampler=PoissonSampler(0.0), folder=tmp_path / name)

    run = make("first", 1.0)
    take_steps(run, 2)
    run.folder.save()
    run.close()
    found = []
    for name, rate in (("second", 1.0), ("third", 2.0)):
        shutil.copytree(tmp_path / "first", tmp_path / name)
        again = make(name, rate)
        again.optimizer.param_groups[0]["lr"] = rate
        found.append(moves(again, take_steps, rate))
        assert again.record().private and again.ledger.released == 4
    found.append(moves(make("first", 1.0), take_steps, 1.0))
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (found[one] - found[other]).abs().max() > 1e-3


@pytest.mark.parametrize("sampler", [PoissonSampler, BallsInBinsSampler])
def test_of_a_private_run_no_randomness_is_stored(small_run, take_steps, tmp_path, sampler):
    number = 0.2 if sampler is PoissonSampler else 5
    run = small_run(sampler=sampler(number), folder=tmp_path)
    take_steps(run, 3)
    run.folder.save()
    (state,) = tmp_path.glob("step-*/state.json")
    assert json.loads(state.read_text())["ranks"] == [None]


def seeded(**seeds):
    return {
        "sampler": PoissonSampler(0.2, seed=seeds.get("sampler")),
        "noise": GaussianNoise(1.0, seed=seeds.get("noise")),
    }


@pytest.mark.parametrize(
    ("replay", "saved", "seeds"),
    [
        (True, True, {"noise": 1}),
        (False, True, {"sampler": 1}),
        (True, False, {"noise": 1, "sampler": 2}),
        (False, False, {"noise": 1}),
    ],
)
def test_a_seeded_run_never_becomes_private(small_run, take_steps, tmp_path, replay, saved, seeds):
    run = small_run(**seeded(**seeds), folder=tmp_path / "a")
    take_steps(run, 2)
    if saved:
        run.folder.save()
    run.close()
    for number in range(2):  # resumed without seeds, stored, copied and resumed again
        again = small_run(folder=tmp_path / "ab"[number], replay=replay)
        assert not again.record().private
        take_steps(again, 2)
        again.folder.save()
        again.close()
        shutil.copytree(tmp_path / "a", tmp_path / "b", dirs_exist_ok=True)


def test_the_certificate_of_a_run_that_was_seeded_does_not_verify(small_run, take_steps, tmp_path):
    for parts in (seeded(noise=1, sampler=1), {}):
        run = small_run(**parts, folder=tmp_path, replay=False)
        take_steps(run, 2)
        certificate = json.loads(run.folder.certify(1e-5).read_text())
        run.close()
    failed = [check.name for check in verify(certificate) if check.holds is False]
    assert failed and run.noise.private and run.sampler.stream.private


def test_a_private_run_resumed_with_a_seed_is_not_private_any_more(small_run, take_steps, tmp_path):
    for parts in ({}, seeded(noise=1), {}):
        run = small_run(**parts, folder=tmp_path)
        take_steps(run, 2)
        run.close()  # never saved: the journal alone knows
    assert not run.record().private


def test_a_seeded_noise_put_in_for_one_step_is_remembered(small_run, take_steps):
    run = small_run(steps=2)
    kept, run.noise = run.noise, GaussianNoise(1.0, seed=0)
    take_steps(run, 1)
    run.noise = kept
    take_steps(run, 1)
    assert not run.record().private
    later = small_run(history=run.record())
    assert not later.record().private and later.process.parts[0] == run.process


def test_the_proof_of_a_repeated_release_is_cryptographic():
    """Hole B4: sums of words and of places times words do not see +1, -2, +1."""
    first = torch.arange(12, dtype=torch.int32).view(torch.float32)
    moved = first.view(torch.int32).clone()
    moved[4:7] += torch.tensor([1, -2, 1], dtype=torch.int32)
    assert digest_of([first]) != digest_of([moved.view(torch.float32)])
    for bit in range(0, 12 * 32, 7):
        flipped = first.view(torch.int32).clone()
        flipped[bit // 32] ^= 1 << (bit % 31)
        assert digest_of([first]) != digest_of([flipped.view(torch.float32)])
    assert digest_of([first]) != digest_of([first[:6], first[6:]])
    assert digest_of([torch.zeros(2)]) != digest_of([torch.zeros(1, dtype=torch.float64)])


def test_the_key_of_the_noise_is_long_and_new_in_every_release():
    """Hole B5: at least 128 bits of key. All words of the CPU generator are new each time."""
    generator, stream = torch.Generator(), open_stream("noise")
    states = []
    for _ in range(3):
        key_generator(generator, stream)
        states.append(generator.get_state().numpy()[24 : 24 + 8 * 624].view(np.uint64))
    assert all(len(np.unique(state)) == 624 for state in states)
    assert not (states[0] == states[1]).any() and not (states[1] == states[2]).any()


class InterruptedGenerator:
    """A CPU generator that another release interrupts just before it gets its key."""

    device = torch.device("cpu")

    def __init__(self, stream):
        self.stream, self.other = stream, torch.Generator()

    def set_state(self, state):
        key_generator(self.other, self.stream)
        self.state = state.clone()


def test_a_release_that_interrupts_another_has_a_key_of_its_own():
    stream = open_stream("noise")
    key_generator(torch.Generator(), stream)  # there is memory to be used again
    interrupted = InterruptedGenerator(stream)
    key_generator(interrupted, stream)
    keys = (interrupted.state, interrupted.other.get_state())
    first, second = (state.numpy()[24 : 24 + 8 * 624].view(np.uint64) for state in keys)
    assert not (first == second).any()


class CudaGenerator:
    """What a CUDA generator shows of itself, where there is none."""

    device = torch.device("cuda")

    def set_state(self, state):
        self.key, self.counter = state.numpy().view(np.uint64).tolist()

    def manual_seed(self, seed):
        raise AssertionError("a seed alone has 64 bits")


def test_the_key_on_cuda_has_124_bits_that_are_free():
    """Key and counter: all bits but the counter's two lowest, and four that keep it in range."""
    stream, seen = open_stream("noise"), CudaGenerator()
    always, ever = 2**128 - 1, 0
    for _ in range(200):
        key_generator(seen, stream)
        state = seen.key << 64 | seen.counter
        always, ever = always & state, ever | state
    assert always == 0
    assert ever.bit_count() == 124


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_key_on_cuda_fills_seed_and_counter():
    generator, stream = torch.Generator("cuda"), open_stream("noise")
    states = []
    for _ in range(50):
        key_generator(generator, stream)
        states.append(generator.get_state().numpy().view(np.uint64).tolist())
        torch.empty(5000, device="cuda").normal_(generator=generator)
    keys, counters = zip(*states, strict=True)
    assert len(set(keys)) == len(set(counters)) == 50
    assert max(keys) > 2**60 and max(counters) > 2**58


@pytest.mark.filterwarnings("ignore::tightrope.estimators.repeated_fits.FitsAddUp")
def test_estimators_made_from_one_another_fit_with_other_noise():
    random = np.random.default_rng(0)
    x = random.standard_normal((80, 3))
    y = (x[:, 0] > 0).astype(int)
    first = PrivateLogisticRegression(
        epsilon=1.0, delta=1e-3, classes=[0, 1], data_norm=2.0, records=80
    )
    fits = [copy.deepcopy(first), pickle.loads(pickle.dumps(first)), first]
    fits += [copy.deepcopy(first.fit(x, y))]
    weights = {tuple(np.ravel(each.fit(x, y).coef_)) for each in fits}
    assert len(weights) == 4
