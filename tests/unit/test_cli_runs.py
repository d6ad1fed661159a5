"""Other people's runs on the command: --from, compose, compare, sweep, and a delta that knows n."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tightrope import GaussianMechanism, NoisySGD, PoissonSampling
from tightrope.cli.app import app
from tightrope.errors import InvalidInput
from tightrope.evidence.certificate import certify, write
from tightrope.evidence.verify import holds, verify
from tightrope.guarantee.base import Validity
from tightrope.numerics.interval import Interval
from tightrope.process.codec import to_json
from tightrope.report.account_view import said_view

RUNNER = CliRunner()
SMALL = ["--noise", "8", "--steps", "10", "--sampling", "full"]


def run(*words):
    return RUNNER.invoke(app, [str(word) for word in words], catch_exceptions=False)


def answer(*words, code=0):
    result = run(*words, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


@pytest.fixture
def files(tmp_path):
    """Two Gaussian releases, as a certificate and as a process."""
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    write(certify(GaussianMechanism(3.0), 1e-5), first)
    second.write_text(json.dumps(to_json(GaussianMechanism(4.0))))
    return first, second


def test_another_librarys_number_is_held_against_ours(tmp_path) -> None:
    state = tmp_path / "state.json"
    told = {"history": [[1.1, 256 / 60000, 14062]], "mechanism": "prv", "delta": 1e-5}
    state.write_text(json.dumps({**told, "epsilon": 2.39}))
    view = answer("account", "--from", state)
    assert view["answer"]["epsilon"]["upper"] == pytest.approx(2.381596921, rel=1e-9)
    assert view["said"]["verdict"] == "safe"
    assert "Your library said 2.39; certified 2.3816" in view["said"]["words"]
    assert view["from"]["source"] == "Opacus accountant state (prv)"
    assert (
        "Too small: your library said 2.2"
        in run("account", "--from", state, "--said", "2.2").stdout
    )


@pytest.mark.parametrize(
    ("claim", "kind", "verdict"),
    [
        ("2.39", Validity.EXACT, "safe"),
        ("2.3815969", Validity.EXACT, "rounded"),
        ("2.38", Validity.EXACT, "rounded"),
        ("2.37", Validity.EXACT, "too small"),
        ("2", Validity.EXACT, "too small"),
        ("2.3e0", Validity.EXACT, "too small"),
        ("2.38", Validity.BOUND, "not proved"),
    ],
)
def test_the_verdict_on_a_printed_epsilon(claim, kind, verdict) -> None:
    found = said_view(claim, Interval(2.38159692, 2.38159693), kind, ("because",))
    assert found["verdict"] == verdict
    assert ("because" in found["words"]) == (verdict in ("too small", "not proved"))
    assert "nan" not in said_view(claim, Interval(0.0, 0.0), kind)["words"]


def test_trainings_on_the_same_people_add_up(files, tmp_path) -> None:
    whole = tmp_path / "whole.json"
    view = answer("compose", *files, "--out", whole, "--plot", tmp_path / "whole.svg")
    alone = [row["epsilon"]["upper"] for row in view["runs"]]
    both = view["together"]["answer"]["epsilon"]["upper"]
    exact = answer("account", "--noise", 2.4, "--steps", 1, "--sampling", "full", "--delta", "1e-5")
    assert both == pytest.approx(exact["answer"]["epsilon"]["upper"], rel=1e-9)  # 3 and 4: 12/5
    assert max(alone) < both < sum(alone)
    assert holds(verify(json.loads(whole.read_text())))
    assert (tmp_path / "whole.svg").exists()
    assert "together" in run("compose", *files).stdout


def test_a_budget_for_several_trainings(files) -> None:
    assert answer("compose", *files, "--epsilon", "5")["budget"]["fits"] is True
    over = answer("compose", *files, "--epsilon", "1", code=1)
    assert over["budget"]["words"].startswith("Over the budget")


def test_what_does_not_add_up_is_refused(files, tmp_path) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps(to_json(GaussianMechanism(3.0, "replace-one"))))
    with pytest.raises(InvalidInput, match="different neighbours"):
        run("compose", *files, other)
    write(certify(GaussianMechanism(3.0), 1e-6), other)
    with pytest.raises(InvalidInput, match="different deltas"):
        run("compose", *files, other)
    stopped = {"type": "StoppedAtWill", "run": to_json(NoisySGD(PoissonSampling(0.1), 9.0, 4))}
    other.write_text(json.dumps({**stopped, "first": None}))
    with pytest.raises(InvalidInput, match="stopped at will"):
        run("compose", files[0], other)


def test_runs_that_no_single_analysis_covers_are_added_by_their_guarantees(files, tmp_path) -> None:
    odd = tmp_path / "odd.json"
    odd.write_text('{"type": "PoissonSelection", "trial_mu": 0.1, "mean_trials": 2.0}')
    lone = tmp_path / "lone.json"
    lone.write_text(json.dumps(to_json(GaussianMechanism(3.0, "replace-one"))))
    view = answer("compose", odd, lone)
    assert "No certificate" in view["together"]["words"]
    assert view["together"]["epsilon"]["upper"] > view["runs"][1]["epsilon"]["upper"]
    with pytest.raises(InvalidInput, match="Leave out --out"):
        run("compose", odd, lone, "--out", tmp_path / "c.json")


def test_runs_beside_each_other(files, tmp_path) -> None:
    picture = tmp_path / "runs.svg"
    view = answer("compare", *files, "--plot", picture)
    assert [row["run"] for row in view["runs"]] == [str(path) for path in files]
    assert view["runs"][0]["answer"]["epsilon"]["upper"] > 1.0
    assert picture.exists() and "advantage" in run("compare", *files).stdout


@pytest.mark.parametrize(
    ("over", "more", "rising"),
    [
        ("epochs", (), True),
        ("noise", ("--values", "2,4,8"), False),
        ("noise", (), False),
        ("delta", (), True),
    ],
)
def test_epsilon_along_a_quantity(over, more, rising, tmp_path) -> None:
    picture = tmp_path / "sweep.svg"
    view = answer("sweep", *SMALL, "--over", over, *more, "--plot", picture)
    found = [row["epsilon"]["upper"] for row in view["rows"]]
    assert len(found) > 2 and found == sorted(found, reverse=not rising)
    assert picture.exists() and over in run("sweep", *SMALL, "--over", over).stdout


def test_the_last_epoch_of_a_sweep_is_the_run() -> None:
    words = ["--rate", "1/20", "--noise", "2", "--steps", "45", "--delta", "1e-5"]
    rows = answer("sweep", *words)["rows"]
    assert [row["epochs"] for row in rows] == [1, 2, 2.25]
    assert rows[-1]["epsilon"] == answer("account", *words)["answer"]["epsilon"]


def test_a_sweep_says_what_it_cannot_answer() -> None:
    rows = answer("sweep", *SMALL, "--over", "noise", "--values", "-1,2")["rows"]
    assert "noise_multiplier must be" in rows[0]["message"] and rows[1]["kind"] == "exact"
    with pytest.raises(InvalidInput, match="Did you mean noise"):
        run("sweep", *SMALL, "--over", "nois")
    with pytest.raises(InvalidInput, match="--values"):
        run("sweep", *SMALL, "--over", "rate")


def test_sizes_stand_wherever_a_rate_does(tmp_path) -> None:
    sizes = ["--batch-size", "256", "--dataset-size", "60000"]
    view = answer("account", *sizes, "--noise", "1.1", "--epochs", "60", "--delta", "1e-5")
    assert view["answer"]["epsilon"]["upper"] == pytest.approx(2.381596921, rel=1e-9)
    found = answer("calibrate", *sizes, "--epsilon", "3", "--delta", "1e-5", "--epochs", "60")
    assert 0.96840792 <= found["answer"]["noise_multiplier"] <= 0.968409
    path = tmp_path / "certificate.json"
    run("certify", *sizes, *SMALL, "--out", path)
    assert json.loads(path.read_text())["setting"]["delta"] == pytest.approx(60000**-1.1)


@pytest.mark.parametrize(
    ("words", "delta", "remark"),
    [
        ([], 1e-5, "by default"),
        (["--dataset-size", "1000"], 1000**-1.1, "the default for 1,000 records"),
        (["--dataset-size", "1000", "--delta", "1e-3"], 1e-3, "too large for 1,000 records"),
        (["--dataset-size", "1000", "--delta", "9e-4"], 9e-4, None),
    ],
)
def test_a_delta_knows_how_many_records_there_are(words, delta, remark) -> None:
    view = answer("account", *SMALL, *words)
    assert view["delta"] == pytest.approx(delta)
    assert remark in view["remarks"][0] if remark else view["remarks"] == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--dataset-size", "1000", "--delta", "1"], "promises nothing"),
        (["--dataset-size", "0"], "dataset_size"),
        (["--dataset-size", "1.5"], "whole number"),
        (["--delta", "1.5"], "delta must be"),
    ],
)
def test_nonsense_about_delta_is_refused(words, told) -> None:
    with pytest.raises(InvalidInput, match=told):
        run("account", *SMALL, *words)


def test_an_advantage_is_answered_in_the_words_of_a_hit_rate() -> None:
    words = ["--steps", "10", "--sampling", "full", "--delta", "1e-6"]
    lead = answer("calibrate", "--advantage", "0.2", *words)
    hits = answer("calibrate", "--tpr", "0.1", *words)
    for view in (lead, hits):
        assert view["answer"]["delta"] == 1e-6 and view["answer"]["epsilon"]["upper"] > 0.1
        assert view["answer"]["words"].startswith("no attack")
    assert lead["target"]["advantage"] == 0.2
    assert "0.2 above its false alarm rate" in run("calibrate", "--advantage", "0.2", *words).stdout


@pytest.mark.slow
def test_a_rate_is_not_sought_for_epochs_that_it_counts() -> None:
    words = ["calibrate", "--epsilon", "3", "--noise", "8", "--delta", "1e-5"]
    with pytest.raises(InvalidInput, match="Give --steps"):
        run(*words, "--epochs", "60")
    found = answer(*words, "--steps", "100", "--sampling", "full", "--find", "noise")
    assert found["answer"]["noise_multiplier"] > 0
    rate = answer(*words, "--steps", "100", "--dataset-size", "5000")
    assert "a batch of at most" in rate["remarks"][-1]


def test_zero_out_neighbours_are_named_and_certified(files, tmp_path) -> None:
    tree = tmp_path / "tree.json"
    event = {"class_name": "SingleEpochTreeAggregationDpEvent", "noise_multiplier": 9.0}
    told = {"dp_event": {**event, "step_counts": 100}, "neighboring_relation": "REPLACE_SPECIAL"}
    tree.write_text(json.dumps(told))
    view = answer("account", "--from", tree, "--delta", "1e-5")
    assert view["answer"]["adjacency"] == "zero-out"
    assert "zero-out neighbours" in view["answer"]["words"]
    with pytest.raises(InvalidInput, match="different neighbours"):
        run("compose", tree, files[1], "--delta", "1e-5")
    run("certify", "--from", tree, "--delta", "1e-5", "--out", tmp_path / "c.json")
    assert answer("verify", tmp_path / "c.json")["holds"]
    words = ("--rate", "0.01", "--noise", "2", "--steps", "100", "--delta", "1e-5")
    zeroed = answer("account", *words, "--adjacency", "zero-out")["answer"]
    assert zeroed["adjacency"] == "zero-out" and zeroed["kind"] == "exact"
    assert zeroed["epsilon"] == answer("account", *words)["answer"]["epsilon"]
