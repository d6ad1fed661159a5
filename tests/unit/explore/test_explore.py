"""The page on which epsilon answers: its numbers are those of the library, and nobody else asks."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

pytest.importorskip("starlette", reason="the page needs Starlette")
pytest.importorskip("httpx", reason="its test client needs httpx")

from starlette.testclient import TestClient

from tightrope import NoisySGD, PoissonSampling, account
from tightrope.errors import InvalidInput
from tightrope.explore.answers import ANSWERS, setting_of
from tightrope.explore.serve import explore_app

MNIST = {"batch_size": "256", "dataset_size": "60000", "noise": "1.1", "epochs": "60"}
MNIST |= {"delta": "1e-5"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


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


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_the_page_in_a_browser(tmp_path):
    port = _free_port()
    command = [sys.executable, "-m", "tightrope", "explore", "--port", port]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            address = f"http://127.0.0.1:{port}/"
            _wait_for(address)
            dom = _dom(f"{address}#noise=1.1&batch_size=256&dataset_size=60000", tmp_path)
        finally:
            server.terminate()
    assert "≤ 2.3816" in dom and "finds at most 41" in dom
    assert "must be at least 0.96841" in dom and 'aria-busy="false"' in dom
    assert len(re.findall(r'<circle [^>]*class="found"', dom)) == 31


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _wait_for(address):
    for _ in range(120):
        try:
            return urllib.request.urlopen(address, timeout=5).close()
        except OSError:
            time.sleep(0.5)
    raise AssertionError("the page did not come up")


def _dom(address, folder):
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}"]
    command = [CHROMIUM, *options, "--virtual-time-budget=20000", "--dump-dom", address]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=True).stdout
