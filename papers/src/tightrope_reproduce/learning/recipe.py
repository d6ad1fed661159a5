"""A training run as the text of a paper states it: frozen, readable, and enough to repeat it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, final

from tightrope.errors import InvalidInput
from tightrope.process import BallsInBinsSampling, NoisySGD, PoissonSampling
from tightrope.validate import check_count, check_positive

__all__ = ["Recipe", "UNCLIPPED", "Update"]

Update = Literal["sgd", "adam"]
UNCLIPPED = ("imdb-slices",)  # tasks whose own loop does not clip to the norm it states


@final
@dataclass(frozen=True)
class Recipe:
    """Everything a run is made of but its seed.

    task: key of the data, model, loss and measure (tasks.py).
    batch_size, public_size: the sampling rate is their ratio; the noisy sum is divided by the
        public constant batch_size, never by the realised size of a batch.
    noise_multiplier: None for the non-private twin (no clipping, no noise, the same batches).
    average: decay of the exponential average of the iterates that is judged; 0 judges the last.
    claim: what the paper prints: accuracy in %, or the root mean squared error.
    bins: batches of an epoch, of which every example is in one; 0 for Poisson batches.
    """

    name: str
    group: str
    task: str
    update: Update
    learning_rate: float
    batch_size: int
    public_size: int
    steps: int
    clip_norm: float
    noise_multiplier: float | None
    delta: float = 1e-5
    momentum: float = 0.0
    average: float = 0.0
    claim: float | None = None
    bins: int = 0

    def __post_init__(self) -> None:
        check_count(self.steps, "steps", low=1)
        check_positive(self.clip_norm, "clip_norm")
        if not 0 < self.batch_size <= self.public_size:
            raise InvalidInput(
                f"The expected batch size {self.batch_size} must lie between 1 and the public "
                f"size {self.public_size}: their ratio is the sampling probability."
            )

    @property
    def rate(self) -> float:
        return self.batch_size / self.public_size

    @property
    def epochs(self) -> float:
        return self.steps * self.rate

    @property
    def measured_at(self) -> tuple[int, ...]:
        """The steps that end an epoch (the k-th at round(k / rate)), and the last step."""
        ends = (round(k / self.rate) for k in range(1, int(self.epochs) + 2))
        return (*(end for end in ends if end < self.steps), self.steps)

    @property
    def process(self) -> NoisySGD | None:
        """What it would be accounted as; None for a twin, and where the clip does not hold."""
        if self.noise_multiplier is None or self.task in UNCLIPPED:
            return None
        sampling = BallsInBinsSampling(self.bins) if self.bins else PoissonSampling(self.rate)
        return NoisySGD(sampling, self.noise_multiplier, self.steps)

    def but(self, name: str, **changes: Any) -> Recipe:
        """This recipe under another name with some things changed."""
        return replace(self, name=name, **changes)

    def twin(self, *, epochs: float, **changes: Any) -> Recipe:
        """The same network and update without clipping and noise."""
        steps, name = round(epochs / self.rate), f"{self.task}-non-private"
        changes = {"claim": None} | changes
        return self.but(name, noise_multiplier=None, steps=steps, **changes)

    def as_dict(self) -> dict[str, Any]:
        """As it is stored; recipes of Poisson batches are older than bins."""
        return {name: value for name, value in asdict(self).items() if name != "bins" or value}
