"""States and settings of Opacus, TensorFlow Privacy and JAX Privacy, and where these err."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from tightrope.errors import DoesNotApply, InvalidInput
from tightrope.interop.dp_event import leaves, process_of
from tightrope.interop.reading import Reading, claims_of, in_order, need, neighbours_of
from tightrope.interop.setting import UNSAID, SamplingName, Setting, build_sampling, parse_number
from tightrope.process import Adjacency, NoisySGD, PoissonSampling
from tightrope.validate import check_count, check_non_negative, check_positive

Data = Mapping[str, Any]


def opacus(data: Data, options: Setting) -> Reading:
    """`accountant.state_dict()`: history of (noise multiplier, sample rate, steps), mechanism."""
    history, mechanism = need(data, ("history", "mechanism"), "Opacus' accountant state")
    runs = []
    for entry in history if isinstance(history, list | tuple) else [history]:
        if not isinstance(entry, list | tuple) or len(entry) != 3:
            raise InvalidInput(
                f"Opacus' history is a list of (noise_multiplier, sample_rate, steps); got "
                f"{entry!r:.80}. Write accountant.state_dict() as JSON."
            )
        noise, rate, steps = entry
        count = check_count(steps, "steps")
        runs.append(
            NoisySGD(build_sampling(options.scheme, rate), noise, count, options.neighbours)
        )
    notes: tuple[str, ...] = ()
    if options.sampling == UNSAID:
        notes = (
            "Opacus' state does not say how batches were drawn. Poisson batches are assumed, as "
            "its accountant assumes them. If you trained with poisson_sampling=False, or with a "
            "loader of your own, say --sampling shuffled.",
        )
    return Reading(
        in_order(runs),
        f"Opacus accountant state ({mechanism})",
        **claims_of(data),
        notes=notes,
        suspects=of_opacus(str(mechanism), options.scheme),
    )


def dp_accounting(data: Data, options: Setting) -> Reading:
    """An event, with `neighboring_relation`, `delta` and `epsilon` beside it where known."""
    neighbours, notes = _neighbours(data.get("neighboring_relation"), options)
    if options.sampling != UNSAID:
        raise InvalidInput("The event says how batches are drawn; leave out --sampling.")
    event = data["dp_event"]
    return Reading(
        process_of(event, neighbours),
        "dp_accounting event",
        **claims_of(data),
        notes=notes,
        suspects=of_events(event, neighbours),
    )


def _neighbours(stated: object, options: Setting) -> tuple[Adjacency, tuple[str, ...]]:
    asked = None if options.adjacency == UNSAID else neighbours_of(options.adjacency)
    found = asked if stated is None else neighbours_of(stated)
    if asked is not None and asked is not found:
        raise InvalidInput(f"The file says {stated}; leave out --adjacency {options.adjacency}.")
    if found is None:
        note = "Events do not name their neighbours: add-or-remove ones, dp_accounting's default."
        return Adjacency.ADD_OR_REMOVE, (note,)
    return found, ()


def tf_privacy(data: Data, options: Setting) -> Reading:
    """The parameters of `compute_dp_sgd_privacy_statement`, or of the older function."""
    older = "num_epochs" not in data
    names = ("n", "batch_size", "epochs") if older else _STATEMENT
    sizes = need(data, (*names, "noise_multiplier"), "TensorFlow Privacy's statement")
    records, batch, epochs, noise = sizes
    scheme = _scheme(data, options)
    shared = not older and data.get("used_microbatching", True)
    setting = Setting(batch_size=batch, dataset_size=records)
    how = build_sampling(scheme, setting.sampling_rate)
    run = NoisySGD(
        how,
        check_non_negative(noise, "noise_multiplier") / (2.0 if shared else 1.0),
        _steps(how.rate, setting, scheme, epochs),
        options.neighbours,
    )
    return Reading(
        run,
        "TensorFlow Privacy statement",
        **claims_of(data),
        group=check_count(data.get("max_examples_per_user") or 1, "max_examples_per_user", low=1),
        notes=_MICROBATCHES[shared],
    )


_STATEMENT = ("number_of_examples", "batch_size", "num_epochs")
_MICROBATCHES = {
    True: ("used_microbatching: a record moves the sum by two clip norms (half the noise).",),
    False: ("Microbatches of one example: larger ones would need half the noise multiplier.",),
}


def _scheme(data: Data, options: Setting) -> SamplingName:
    if "sampling" in data and options.sampling == UNSAID:
        return Setting(sampling=data["sampling"]).scheme
    if options.sampling == UNSAID:
        raise InvalidInput(
            "TensorFlow Privacy's parameters do not say how batches were drawn, and that decides: "
            "its statement prints one epsilon for Poisson batches and one for any order. Say "
            "--sampling shuffled (tf.data's shuffle) or --sampling poisson."
        )
    return options.scheme


def _steps(rate: float, setting: Setting, scheme: SamplingName, epochs: object) -> int:
    """Epochs of whole batches, a step begun counted as one."""
    passes = Fraction(float(check_positive(parse_number(epochs, "epochs"), "epochs")))
    if scheme in (SamplingName.POISSON, SamplingName.FIXED_SIZE):
        return math.ceil(passes * Fraction(setting.records or 1, int(setting.batch_size)))
    return math.ceil(passes * round(1 / rate))


def jax_privacy(data: Data, options: Setting) -> Reading:
    """BandMFConfig, or the arguments of the functions in `jax_privacy.accounting`."""
    if data.get("use_zcdp"):
        raise DoesNotApply("Sampled zCDP has no amplification theorem; give the Gaussian noise.")
    if data.get("truncated_batch_size"):
        raise DoesNotApply(
            "Poisson batches with a largest size cost more privacy than plain ones, by an amount "
            "that depends on the number of records. Give the run as "
            "TruncatedSubsampledGaussianDpEvent, which states that number."
        )
    process = _fixed_size(data) if "dataset_size" in data else _banded(data)
    return Reading(process, "JAX Privacy configuration", **claims_of(data))


def _banded(data: Data) -> NoisySGD:
    """b bands and cyclic Poisson batches are Poisson with iterations / b steps (2306.08153)."""
    noise, iterations = need(data, ("noise_multiplier", "iterations"), "A JAX Privacy config")
    steps = check_count(iterations, "iterations", low=1)
    bands = _bands(data.get("num_bands"), data.get("strategy"))
    if "sampling_prob" in data:
        rate = data["sampling_prob"]
    else:
        (times,) = need(data, ("expected_participations",), "BandMFConfig")
        rate = float(check_non_negative(times, "expected_participations")) * bands / steps
    zeroed = data.get("num_examples") is not None
    who = Adjacency.ZERO_OUT if zeroed else Adjacency.ADD_OR_REMOVE
    return NoisySGD(PoissonSampling(rate), noise, -(-steps // bands), who)


def _bands(stated: object, strategy: object) -> int:
    """The number of bands; 1 where the file names none (plain DP-SGD)."""
    if strategy is None:
        return check_count(1 if stated is None else stated, "num_bands", low=1)
    found = check_count(_length(strategy), "bands", low=1)
    if stated not in (None, found):
        raise InvalidInput(
            f"num_bands = {stated!r}, and the strategy has {found}. Say the true one."
        )
    return found


def _length(strategy: object) -> int:
    if not hasattr(strategy, "__len__") or isinstance(strategy, str | Mapping):
        raise InvalidInput(f"strategy is a list of Toeplitz coefficients; got {strategy!r:.80}.")
    return len(strategy)


def _fixed_size(data: Data) -> Any:
    names = ("noise_multiplier", "iterations", "dataset_size", "batch_size")
    noise, iterations, size, batch = need(data, names, "fixed_dpsgd_event")
    kind = "SampledWithReplacementDpEvent"
    event = {
        "class_name": kind if data.get("replace") else "SampledWithoutReplacementDpEvent",
        "source_dataset_size": size,
        "sample_size": batch,
        "event": {"class_name": "GaussianDpEvent", "noise_multiplier": noise},
    }
    whole = {"class_name": "SelfComposedDpEvent", "event": event, "count": iterations}
    return process_of(whole, Adjacency.REPLACE_ONE)


def of_opacus(mechanism: str, scheme: SamplingName) -> tuple[str, ...]:
    found = []
    if mechanism == "gdp":
        found.append("its gdp accountant is the central limit theorem, an estimate without proof")
    if scheme is not SamplingName.POISSON:
        found.append(f"its accountants are about Poisson batches, not {scheme.value} ones")
    return tuple(found)


def of_events(event: object, neighbours: Adjacency) -> tuple[str, ...]:
    """What dp_accounting (2026) gets wrong about these events."""
    counts: dict[str, int] = {}
    found = []
    for leaf, count in leaves(event):
        counts[leaf.name] = counts.get(leaf.name, 0) + count
    if any(isinstance(leaf.values.get("noise_multiplier"), int) for leaf, _ in leaves(event)):
        found.append(
            "its Renyi accountant misreads a noise multiplier that is a whole number (4, not 4.0) "
            "where several releases share a Poisson batch"
        )
    if neighbours is Adjacency.REPLACE_ONE and "GaussianDpEvent" in counts:
        found.append(
            "its Renyi accountant takes a replaced record for one clip norm where it is two, so "
            "that divergences are four times too small (google/differential-privacy issue 378)"
        )
    if counts.get("RandomizedResponseDpEvent", 0) > 1:
        found.append("its PLD accountant counts repeated randomised response once")
    if counts.get("ExponentialMechanismDpEvent", 0) > 1:
        found.append("its Renyi accountant counts a repeated exponential mechanism once")
    return tuple(found)
