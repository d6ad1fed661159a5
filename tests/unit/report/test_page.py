"""The report page: what it says, what it must not say, and that everybody can read it."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="figures are drawn with it")

from tightrope import GaussianMechanism, NoisySGD, PoissonSampling, Sequence
from tightrope.audit import save_audit
from tightrope.errors import InvalidInput
from tightrope.evidence.certificate import Title, certify, chain_of, write
from tightrope.evidence.run_facts import Measured, RunFacts, Spent
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.report.page import Page, html_page, markdown_page, page_of
from tightrope.report.words import found_of, headline, meaning

DELTA = 1e-5
PROCESS = NoisySGD(PoissonSampling(1.0), noise_multiplier=8.0, steps=10)


def facts(**changed: Any) -> RunFacts:
    from tightrope import account

    spent = account(NoisySGD(PoissonSampling(1.0), 8.0, 5)).epsilon(DELTA).upper
    settings: dict[str, Any] = {
        "kind": "training",
        "private": True,
        "not_private_because": (),
        "steps": 10,
        "length": "planned",
        "clip": "FlatClip(clip_norm=1.0)",
        "sensitivity": 1.0,
        "noise": "Gaussian",
        "sampling": "operating-system entropy",
        "settings": {"optimizer": "SGD"},
        "budget": (3.0, DELTA),
        "history": (Spent(5, spent),),
        "measured": (Measured(10, "accuracy", 0.9, "digits"),),
    }
    return RunFacts(**(settings | changed))


@lru_cache
def trained() -> str:
    return json.dumps(certify(PROCESS, DELTA, facts()))


def fresh() -> dict[str, Any]:
    return json.loads(trained())  # type: ignore[no-any-return]


@lru_cache
def page_text() -> str:
    return html_page(Page(fresh()))


class Outline(HTMLParser):
    """Headings, pictures and addresses of a page; complains about tags left open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []
        self.pictures: list[dict[str, str | None]] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "path", "use", "rect", "br"):
            self.open.append(tag)
        if re.fullmatch(r"h\d", tag):
            self.headings.append(tag)
        if tag == "svg":
            self.pictures.append(dict(attrs))
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data", "action"):
                self.addresses.append(str(value))

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()


def outline(text: str) -> Outline:
    found = Outline()
    found.feed(text)
    return found


# ---- form
def test_the_page_is_whole_and_asks_for_nothing_from_outside() -> None:
    text = page_text()
    found = outline(text)
    assert found.open == [], "every tag is closed"
    assert all(address.startswith("#") for address in found.addresses)
    assert "http" not in text.replace("http://www.w3.org", "").replace("http-equiv", "")
    assert "<script" not in text and "@import" not in text and "url(http" not in text


def test_every_picture_says_what_it_shows() -> None:
    pictures = outline(page_text()).pictures
    assert len(pictures) >= 4
    for picture in pictures:
        assert picture.get("role") == "img" and len(picture.get("aria-label") or "") > 30


def test_one_title_and_headings_in_order() -> None:
    headings = outline(page_text()).headings
    assert headings[0] == "h1" and set(headings[1:]) == {"h2"}
    assert '<html lang="en">' in page_text() and "<title>" in page_text()


def luminance(colour: str) -> float:
    parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    light, dark = sorted([luminance(one), luminance(other)], reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_text_and_lines_stand_out_in_light_and_dark() -> None:
    """WCAG 2: 4.5 for text, 3 for what is drawn."""
    css = files("tightrope.report").joinpath("page.css").read_text()
    schemes = [dict(re.findall(r"--(\w+): (#\w{6})", part)) for part in css.split("@media")[:2]]
    for scheme in schemes:
        for ground in ("paper", "soft"):
            for ink in ("ink", "good", "bad"):
                assert contrast(scheme[ink], scheme[ground]) >= 4.5, (ink, ground)
        for line in ("exact", "bound", "estimate", "attack", "plain"):
            assert contrast(scheme[line], scheme["paper"]) >= 3.0, line
            assert contrast(scheme[line], scheme["pale"]) >= 2.0, line


# ---- words
def test_a_lay_reader_gets_the_number_first() -> None:
    text = page_text()
    found = found_of(GaussianGuarantee(10**0.5 / 8.0))
    assert f"finds at most {found}" in text and "Guessing would find 10" in text
    assert text.index("Of 1,000 people") < text.index("For specialists")
    for told in (
        "Who answers for what",
        "What would change",
        "Cite as",
        "accuracy on public data",
        "budget",
    ):
        assert told in text
    for state in ("Recomputed here:", "Stated by the writer:", "Yours to check:"):
        assert state in text
    assert "✓" not in text, "no tick that nobody checked"


@pytest.mark.parametrize(
    ("mu", "delta", "told"),
    [
        (0.0, 0.0, "epsilon = 0: you change nothing at all."),
        (0.5, 0.5, "you change nothing at all, but for what delta allows"),
        (1.0, 0.0, "No finite epsilon holds at delta = 0: nothing is promised"),
        (40.0, 1e-5, "That alone protects no one"),
        (1e5, 1e-5, "times as likely as without you. That alone protects no one"),
        (1.0, 1.0, "delta = 1 allows everything"),
        (1.0, 0.01, "gives away one person in 100 completely"),
        (1.0, 1e-5, "It should be far smaller than one over the number of people"),
    ],
)
def test_the_words_fit_every_epsilon_and_delta(mu: float, delta: float, told: str) -> None:
    assert told in " ".join(meaning(GaussianGuarantee(mu), delta))


def test_a_large_factor_is_rounded_up_and_people_count() -> None:
    guarantee = GaussianGuarantee(40.0)
    epsilon = guarantee.epsilon(1e-5).upper
    power = int(re.findall(r"10\^(\d+)", meaning(guarantee, 1e-5)[1])[0])
    assert power * np.log(10) >= epsilon
    assert "large for 60,000 people" in meaning(GaussianGuarantee(1.0), 1e-5, 60_000)[2]


def test_the_title_says_what_is_not_published() -> None:
    assert page_text().count("not published") >= 5
    title = Title("Example & Sons", "Risk", "Visits", "2026-11-01", 12345)
    text = html_page(Page(json.loads(json.dumps(certify(PROCESS, DELTA, facts(), title)))))
    for told in ("Example &amp; Sons", "2026-11-01", "12,345"):
        assert told in text


@pytest.mark.parametrize("delta", [0.0, 0.25])
def test_a_page_for_every_delta(delta: float) -> None:
    text = html_page(Page(json.loads(json.dumps(certify(GaussianMechanism(2.0), delta)))))
    assert ("NOT PRIVATE: no finite epsilon" in text) == (delta == 0.0)
    assert ("Of 1,000 people" in text) == (delta > 0.0)


def test_people_are_rounded_up_and_everyone_is_said_plainly() -> None:
    assert found_of(GaussianGuarantee(0.0)) == 10
    assert "does not rule out" in headline(GaussianGuarantee(50.0))
    assert "nothing is promised" in meaning(GaussianGuarantee(float("inf")), DELTA)[0]


def test_a_declared_process_is_not_sold_as_a_run() -> None:
    text = html_page(Page(json.loads(json.dumps(certify(GaussianMechanism(2.0), DELTA)))))
    assert "nothing was run" in text
    assert "nothing was run: the process is declared" in text


def test_sequences_are_described_part_by_part() -> None:
    process = Sequence((GaussianMechanism(5.0), GaussianMechanism(3.0)))
    text = markdown_page(Page(json.loads(json.dumps(certify(process, DELTA)))))
    assert text.count("| process | GaussianMechanism |") == 2


def test_a_seeded_run_is_not_private_and_gets_no_headline() -> None:
    reasons = {"private": False, "not_private_because": ("the noise is seeded",)}
    text = html_page(Page(json.loads(json.dumps(certify(PROCESS, DELTA, facts(**reasons))))))
    assert "NOT PRIVATE: the noise is seeded" in text and "Of 1,000 people" not in text


def test_an_edited_certificate_gets_a_warning_and_no_headline() -> None:
    certificate = fresh()
    certificate["process"]["noise_multiplier"] = 80.0
    edited = html_page(Page(certificate))
    rehashed = html_page(Page({**certificate, "chain": chain_of(certificate)}))
    for text in (edited, rehashed):
        assert "Do not trust this certificate" in text and "Of 1,000 people" not in text


@pytest.mark.parametrize("section", ["process", "setting", "library", "chain", "analysis"])
def test_a_damaged_certificate_gets_no_page(section: str) -> None:
    with pytest.raises(InvalidInput, match="too damaged"):
        html_page(Page({**fresh(), section: None}))


def test_texts_of_the_certificate_are_not_code_of_the_page() -> None:
    certificate = certify(PROCESS, DELTA, facts(clip="<script>alert(1)</script>"))
    text = html_page(Page(json.loads(json.dumps(certificate))))
    assert "<script" not in text and "&lt;script&gt;" in text


def test_markdown_says_the_same() -> None:
    text = markdown_page(Page(fresh()))
    for told in ("# Privacy report", "Of 1,000 people", "| analysis |", "Cite as"):
        assert told in text
    assert "<svg" not in text


# ---- run folders
def folder_with(tmp_path: Path, **changed: Any) -> Path:
    write(fresh(), tmp_path / "certificate.json")
    included = np.arange(40) % 2 == 0
    scores = {"scores": 0.1 * included + np.linspace(0, 2, 40)}  # finds little
    save_audit(tmp_path, scores, included, changed.get("process", PROCESS), delta=DELTA)
    return tmp_path


def test_a_folder_adds_the_attack(tmp_path: Path) -> None:
    text = html_page(page_of(folder_with(tmp_path)))
    assert "An attack was tried" in text and "That does not prove privacy" in text


def test_an_attack_on_another_process_says_nothing_about_this_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="attacked another process"):
        page_of(folder_with(tmp_path, process=NoisySGD(PoissonSampling(1.0), 8.0, 9)))
