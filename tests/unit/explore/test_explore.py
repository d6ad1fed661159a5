"""The page on which epsilon answers: its numbers are those of the library, and nobody else asks."""

from __future__ import annotations

import asyncio
import re

import pytest

pytest.importorskip("starlette", reason="the page needs Starlette")
pytest.importorskip("httpx", reason="its test client needs httpx")

from starlette.testclient import TestClient

from tightrope import NoisySGD, PoissonSampling, account
from tightrope.errors import ContradictoryMethods, InvalidInput
from tightrope.explore.page import ANSWERS, explore_app, setting_of

MNIST = {"batch_size": "256", "dataset_size": "60000", "noise": "1.1", "epochs": "60"}
MNIST |= {"delta": "1e-5"}


def answered(what, **words):
    return ANSWERS[what](setting_of(MNIST | words), MNIST | words)


@pytest.fixture
def client():
    with TestClient(explore_app(), base_url="http://127.0.0.1") as made:
        yield made


def test_epsilon_is_what_account_says_and_the_code_prints_it(capsys):
    found = answered("epsilon")
    truth = account(NoisySGD(PoissonSampling(256 / 60000), 1.1, 14062)).epsilon(1e-5)
    assert found["epsilon"] == {"lower": truth.lower, "upper": truth.upper}
    exec(found["python"], {})
    assert capsys.readouterr().out.strip() == str(truth)


def test_the_second_method_confirms_or_its_contradiction_is_refused(client, monkeypatch):
    assert "Proved twice" in answered("second")["words"]

    def contradicted(*claim):
        raise ContradictoryMethods("Two certified methods contradict each other.")

    monkeypatch.setattr("tightrope.accounting.confirm_epsilon", contradicted)
    reply = client.get("/answer/second", params=MNIST).json()
    assert reply == {"refused": "Two certified methods contradict each other."}


@pytest.mark.parametrize("sampling", ["poisson", "balls-in-bins", "fixed-size", "shuffled", "full"])
def test_every_sampler_has_code_that_gives_its_number(sampling, capsys):
    words = {"sampling": sampling, "epochs": "2", "dataset_size": "2560", "noise": "4"}
    words |= {"adjacency": "replace-one"} if sampling == "fixed-size" else {}
    found = answered("epsilon", **words)
    exec(found["python"], {})
    printed = [float(x) for x in re.findall(r"[\d.]+(?:e-?\d+)?", capsys.readouterr().out)]
    assert printed[-1] == pytest.approx(found["epsilon"]["upper"], rel=1e-8)


def test_the_curve_is_never_below_the_best_attack_and_close_to_it():
    found = answered("curve")
    best = account(setting_of(MNIST).run()).guarantee(1e-5)
    for rate, hit in list(zip(found["rates"], found["hits"], strict=True))[::13]:
        truth = best.true_positive_rate(rate)
        assert truth.lower <= hit <= truth.upper * 1.05 + 1e-4
    assert found["found_of_1000"] == 41


def test_noise_and_steps_along_the_way():
    assert answered("noise", budget="3")["noise"] == pytest.approx(0.9684079, rel=1e-6)
    rows = answered("epochs")["rows"]
    assert rows[-1]["steps"] == 14062
    assert [r["epsilon"]["upper"] for r in rows] == sorted(r["epsilon"]["upper"] for r in rows)


def test_a_refusal_is_an_answer(client):
    assert "dataset size" in client.get("/answer/epsilon?batch_size=5&noise=1").json()["refused"]
    assert client.get("/answer/nothing").status_code == 404
    with pytest.raises(InvalidInput, match="fields"):
        setting_of({"nois": "1"})


@pytest.mark.parametrize(
    "words", ["noise=nan", "noise=<script>", "noise=1e400", "delta=2", "epochs=-1"]
)
def test_hostile_words_come_back_as_plain_words(client, words):
    whole = "&".join(f"{k}={v}" for k, v in MNIST.items() if k != words.partition("=")[0])
    reply = client.get(f"/answer/epsilon?{whole}&{words}")
    assert reply.status_code == 200 and "refused" in reply.json()
    assert reply.headers["content-type"] == "application/json"


def test_nobody_else_may_ask(client):
    page = client.get("/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 400
    with pytest.raises(InvalidInput, match="token"):
        explore_app("0.0.0.0")


@pytest.mark.parametrize("what", list(ANSWERS))
@pytest.mark.parametrize(
    "words",
    [
        "noise=1e5", "noise=0.01", "epochs=1e12", "delta=1e-300", "delta=0", "delta=0.9",
        "noise=1e-300", "group=8",
    ],
)  # fmt: skip
def test_what_would_take_minutes_or_is_not_answered_is_refused_at_once(client, what, words):
    """20 GiB were asked for at noise 1e5; a group of 8 was told the epsilon of one record."""
    whole = "&".join(f"{k}={v}" for k, v in MNIST.items() if k != words.partition("=")[0])
    refused = client.get(f"/answer/{what}?{whole}&{words}").json()["refused"]
    assert "This page answers" in refused or "fields" in refused


@pytest.mark.parametrize("budget", ["nan", "abc", "", "0", "-1", "inf"])
def test_budgets_that_are_none(client, budget):
    whole = "&".join(f"{k}={v}" for k, v in MNIST.items())
    assert "budget" in client.get(f"/answer/noise?{whole}&budget={budget}").json()["refused"]


def test_the_steepest_curves_are_numbers():
    found = answered("curve", noise="0.1", sampling="full", epochs="1000", batch_size="60000")
    assert max(found["hits"]) == 1.0 and found["found_of_1000"] == 1000


def test_pages_elsewhere_cannot_make_this_machine_compute(client):
    asked = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert client.get("/answer/epsilon?noise=1", headers=asked).status_code == 403
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert client.get("/", headers=link).status_code == 200


def test_what_nobody_waits_for_is_not_computed(monkeypatch):
    """A slider that has moved on hangs up; the server then has better things to do."""
    asked = []
    monkeypatch.setitem(ANSWERS, "epsilon", lambda *words: asked.append(words) or {})

    async def hung_up():
        return {"type": "http.disconnect"}

    async def still_there():
        await asyncio.sleep(60)

    async def sent(message):
        pass

    def ask(receive):
        scope = {"type": "http", "method": "GET", "path": "/answer/epsilon", "headers": []}
        scope |= {"headers": [(b"host", b"127.0.0.1")], "http_version": "1.1", "scheme": "http"}
        query = "&".join(f"{k}={v}" for k, v in MNIST.items()).encode()
        asyncio.run(explore_app()(scope | {"query_string": query}, receive, sent))

    ask(hung_up)
    assert asked == []
    ask(still_there)
    assert len(asked) == 1
