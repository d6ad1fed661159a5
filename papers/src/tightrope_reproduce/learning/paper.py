"""The trainings of "Deep Learning with Gaussian Differential Privacy" (Bu, Dong, Long, Su 2019).

Tables 1 to 4 and Figure 4, with the printed hyperparameters and results. The number of steps is
round(epochs / rate). Where the paper leaves a choice open (start values, the rating as the mean of
a softmax over five classes), the tutorials its authors published decide; see tasks.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tightrope_reproduce.item import Printed
from tightrope_reproduce.learning.recipe import Recipe

__all__ = [
    "Claim",
    "CLAIMS",
    "TABLE_1",
    "TABLE_2",
    "LAST_TENTH",
    "TABLE_3",
    "SLICES",
    "TABLE_4",
    "FIGURE_4",
    "TWINS",
]


@final
@dataclass(frozen=True)
class Claim:
    """The privacy columns printed beside a private recipe."""

    mu: float
    clt_epsilon: float
    moments_epsilon: float

    def __post_init__(self) -> None:
        for name in ("mu", "clt_epsilon", "moments_epsilon"):
            object.__setattr__(self, name, Printed(getattr(self, name)))


def _mnist(name: str, rate: float, clip: float, noise: float, epochs: int, claim: float) -> Recipe:
    return Recipe(
        name=name,
        group="table-1",
        task="mnist",
        update="sgd",
        learning_rate=rate,
        batch_size=256,
        public_size=60_000,
        steps=round(epochs * 60_000 / 256),
        clip_norm=clip,
        noise_multiplier=noise,
        claim=claim,
    )


TABLE_1 = (
    _mnist("mnist-1.3", 0.25, 1.5, 1.3, 15, 95.0),
    _mnist("mnist-1.1", 0.15, 1.0, 1.1, 60, 96.6),
    _mnist("mnist-0.7", 0.25, 1.5, 0.7, 45, 97.0),
    _mnist("mnist-0.6", 0.25, 1.5, 0.6, 62, 97.6),
    _mnist("mnist-0.55", 0.25, 1.5, 0.55, 68, 97.8),
    _mnist("mnist-0.5", 0.25, 1.5, 0.5, 100, 98.0),
)

TABLE_2 = Recipe(
    name="adult",
    group="table-2",
    task="adult",
    update="sgd",
    learning_rate=0.15,
    batch_size=256,
    public_size=29_305,
    steps=round(18 * 29_305 / 256),
    clip_norm=1.0,
    noise_multiplier=0.55,
    claim=84.0,
)

# the tenth that the authors' script holds out (the text says a random one)
LAST_TENTH = TABLE_2.but("adult-last-tenth", task="adult-last-tenth")

TABLE_3 = Recipe(
    name="imdb",
    group="table-3",
    task="imdb",
    update="adam",
    learning_rate=0.02,
    batch_size=512,
    public_size=25_000,
    steps=round(9 * 25_000 / 512),
    clip_norm=1.0,
    noise_multiplier=0.56,
    claim=83.8,
)

# the same with the clip that the authors' library applied (slices.py): not private as accounted
SLICES = TABLE_3.but("imdb-slices", task="imdb-slices")

# rate 1/80 exactly: 800,160 is the multiple of 80 next to the 800,168 training ratings
TABLE_4 = Recipe(
    name="movielens",
    group="table-4",
    task="movielens",
    update="adam",
    learning_rate=0.01,
    batch_size=10_002,
    public_size=800_160,
    steps=1_600,
    clip_norm=5.0,
    noise_multiplier=0.6,
    delta=1e-6,
    claim=0.915,
)

CLAIMS = {
    "mnist-1.3": Claim(0.23, 0.83, 1.19),
    "mnist-1.1": Claim(0.57, 2.32, 3.01),
    "mnist-0.7": Claim(1.13, 5.07, 7.10),
    "mnist-0.6": Claim(2.00, 9.98, 13.27),
    "mnist-0.55": Claim(2.76, 14.98, 18.72),
    "mnist-0.5": Claim(4.78, 31.12, 32.40),
    "adult": Claim(2.03, 10.20, 14.70),
    "imdb": Claim(2.07, 10.43, 15.24),
    "movielens": Claim(1.94, 10.61, 15.39),
}

_TOP = TABLE_1[0].but("figure-4", group="figure-4", learning_rate=0.15, claim=None)


def _figure(noise: float, epochs: int) -> Recipe:
    steps = round(epochs / _TOP.rate)
    return _TOP.but(f"figure-4-{noise:g}", noise_multiplier=noise, steps=steps)


# the paper's pairs give the same epsilon at epoch 20 and at epoch 70
FIGURE_4 = (_figure(1.3, 20), _figure(1.06, 20), _figure(0.7, 70), _figure(0.638, 70))

# The paper prints no non-private MNIST: 20 epochs as for its other twins, and a smaller step, since
# without clipping 0.25 ends anywhere between 97.7 and 99.1 %.
TWINS = (
    TABLE_1[0].twin(epochs=20, learning_rate=0.05),
    TABLE_2.twin(epochs=20, claim=84.5),
    LAST_TENTH.twin(epochs=20, claim=84.5),
    TABLE_3.twin(epochs=20, claim=84.7),
    TABLE_4.twin(epochs=20, claim=0.893),
)
