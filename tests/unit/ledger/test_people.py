"""What people see and may do: the command, the page, the roles of PostgreSQL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

import sqlalchemy as sql
from starlette.testclient import TestClient
from typer.testing import CliRunner

from tightrope.cli.ledger_command import app
from tightrope.errors import InvalidInput, TightropeError
from tightrope.evidence.signature import head_signer, new_key_pair
from tightrope.ledger import IN_ADVANCE, Terms, Total, create_ledger, open_ledger
from tightrope.ledger.store import grant_roles
from tightrope.ledger.views import forecast_view, page_app
from tightrope.process import GaussianMechanism, NoisySGD, PoissonSampling
from tightrope.serving import check_host

RUN = NoisySGD(PoissonSampling(0.01), 1.1, 400)
HOSTILE = "</title><script>alert('x')</script>\" onload=\"{{7*7}} & ü"
TOKEN = "a-token-of-twenty-characters"


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    made = create_ledger(tmp_path / "ledger.db", who="ann <b>")
    made.add(Terms("people", Total(epsilon=3.0, delta=1e-5)))
    made.add(Terms(HOSTILE, Total(mu=1.0), unit="<i>person</i>"))
    return made


def command(*words: str) -> str:
    """What it prints, or what it refuses."""
    done = CliRunner().invoke(app, list(words))
    return str(done.exception) if isinstance(done.exception, TightropeError) else done.stdout


def test_the_command_from_init_to_export(tmp_path: Path) -> None:
    at = ["--ledger", str(tmp_path / "l.db"), "--heads", str(tmp_path / "heads.json")]
    assert command("init", *at[:2]).startswith("Ledger: ")
    assert "epsilon 3" in command("add", "people", "--epsilon", "3", "--delta", "1e-5", *at)
    run = ["--rate", "0.01", "--noise", "1.1", "--steps"]
    name = command("reserve", "people", *run, "400", *at).strip()
    assert "What would fit" in command("reserve", "people", *run, "400000", *at)
    certificate = tmp_path / "certificate.json"
    certificate.write_text("{}")
    settle = ["people", name, "--released", "100", "--certificate", str(certificate)]
    assert command("settle", *settle, *at) == f"Settled: {name}\n"
    assert "was settled with" in command("settle", *settle, *at)
    (row,) = json.loads(command("history", "people", "--json", *at))
    assert (row["settled"], len(row["certificate"])) == (100, 64)
    (row,) = json.loads(command("status", "--json", *at))
    assert row["settled"] == 1 and 0 < row["share"] < 0.1
    assert json.loads(command("forecast", "people", "--json", *at))["more_like_the_last"] > 3
    assert "3 entries" in command("check", "people", "--head", row["head"], *at)
    assert "does not lead through" in command("check", "people", "--head", f"3:{64 * '0'}", *at)
    out = tmp_path / "export.json"
    assert command("export", "--out", str(out), *at).startswith("Export: ")
    assert len(json.loads(out.read_text())["logs"]["people"]) == 3


def test_entries_are_signed_and_the_signatures_checked(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    at = ["--ledger", str(tmp_path / "l.db")]
    command("init", *at)
    (ann, ann_pub), (eve, _) = (new_key_pair(tmp_path / f"{name}.key") for name in ("ann", "eve"))
    command("add", "people", "--mu", "1", "--sign", str(ann), *at)
    trust = ["check", "people", "--key", str(ann_pub), *at]
    assert "1 entries" in command(*trust)
    ledger = open_ledger(tmp_path / "l.db", sign=head_signer(eve))
    held = ledger.reserve("people", GaussianMechanism(50.0))
    assert "none that you trust" in command(*trust)
    open_ledger(tmp_path / "l.db").settle("people", held.id, 1)
    ledger.store.run(["DROP TRIGGER tightrope_entries_UPDATE"])
    first = ledger.store.entries("people")[0].signature
    for signature, said in (
        (first, "does not match"),
        ("x", "does not match"),
        (None, "there is none"),
    ):
        told = "NULL" if signature is None else "'" + signature.replace(":", r"\:") + "'"
        ledger.store.run([f"UPDATE tightrope_entries SET signature = {told} WHERE number > 1"])
        assert said in command(*trust)


def test_a_forecast_says_why_there_is_none(ledger: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "too little" in forecast_view(ledger, "people")["no_date_because"]
    monkeypatch.setattr("time.time", lambda: 4e9)
    ledger.reserve("people", RUN)
    assert forecast_view(ledger, "people")["days_left"] > 0
    monkeypatch.setattr("time.time", lambda: 1.0)
    ledger.reserve("people", RUN)
    assert "clock" in forecast_view(ledger, "people")["no_date_because"]
    ledger.add(Terms("fixed", Total(epsilon=3.0, delta=1e-5), choices=IN_ADVANCE))
    assert "in advance" in forecast_view(ledger, "fixed")["no_date_because"]


def test_the_page_shows_what_is_left_and_no_script_of_a_name(ledger: Any) -> None:
    held = ledger.reserve("people", RUN, note="<script>x</script>")
    ledger.settle("people", held.id, 100, certificate="ab<script>")
    client = TestClient(page_app(ledger), base_url="http://127.0.0.1")
    index = client.get("/")
    assert index.status_code == 200 and "% left" in index.text
    for name in ("people", HOSTILE):
        page = client.get("/dataset", params={"name": name})
        assert page.status_code == 200
        for text in (index.text, page.text):
            assert "<script" not in text and "<b>" not in text and "<i>" not in text
            assert "49" not in text.split("</head>")[0]
        assert "script-src" not in page.headers["Content-Security-Policy"]
    assert "ann &lt;b&gt;" in client.get("/dataset", params={"name": "people"}).text
    assert client.get("/dataset", params={"name": "nobody"}).status_code == 404
    assert client.post("/").status_code == 405
    elsewhere = TestClient(page_app(ledger), base_url="http://evil.example")
    assert elsewhere.get("/").status_code == 400


def test_one_damaged_log_does_not_hide_the_others(ledger: Any) -> None:
    copied = "SELECT 'copied', number, content, chain FROM tightrope_entries"
    columns = "tightrope_entries (dataset, number, content, chain)"
    ledger.store.run([f"INSERT INTO {columns} {copied} WHERE dataset = 'people'"])
    client = TestClient(page_app(ledger), base_url="http://127.0.0.1")
    index = client.get("/")
    assert index.status_code == 200 and "damaged" in index.text
    assert index.text.count("% left") == len(ledger.names()) - 1
    one = client.get("/dataset", params={"name": "copied"})
    assert one.status_code == 200 and "that of" in one.text and "% left" not in one.text


def test_off_loopback_there_is_a_token(ledger: Any) -> None:
    check_host("127.0.0.1", None)
    for host, token in (("0.0.0.0", None), ("somewhere.org", None), ("127.0.0.1", "short")):
        with pytest.raises(InvalidInput):
            check_host(host, token)
    client = TestClient(page_app(ledger, "0.0.0.0", TOKEN))
    assert client.get("/").status_code == 401
    assert client.get("/", params={"token": "wrong"}).status_code == 401
    assert client.get("/", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert client.get("/", params={"token": TOKEN}).status_code == 200  # and a cookie from now on
    assert client.get("/").status_code == 200


def test_roles_are_kept_by_postgresql(server: str) -> None:
    where = sql.make_url(server)
    engine = sql.create_engine(where, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sql.text("CREATE DATABASE roles"))
    engine.dispose()
    where = where.set(database="roles")

    def url(account: str) -> str:
        return where.set(username=account).render_as_string(hide_password=False)

    owner = create_ledger(url("owner"))
    for _ in range(2):  # again, where they are already
        grant_roles(owner.store)
    accounts = {"rita": "tightrope_reader", "sam": "tightrope_spender", "olga": "tightrope_owner"}
    for account, role in accounts.items():
        owner.store.run([f"CREATE ROLE {account} LOGIN", f"GRANT {role} TO {account}"])
    terms = Terms("people", Total(epsilon=3.0, delta=1e-5))
    rita, sam, olga = (open_ledger(url(name), who="somebody else") for name in accounts)
    for unable in (rita, sam):
        with pytest.raises(InvalidInput, match="may not do this"):
            unable.add(terms)
    olga.add(terms)
    held = sam.reserve("people", RUN)
    assert held.who == "sam"  # the account's name, whatever was given
    with pytest.raises(InvalidInput, match="may not do this"):
        rita.settle("people", held.id, 0)
    assert rita.standing("people").open == 1
    forged = "INSERT INTO tightrope_entries VALUES ('people', 3, :content, 'x', NULL)"
    for body in ({"kind": "settle", "who": "olga"}, {"kind": "add", "who": "sam"}):
        content = json.dumps(body | {"dataset": "people"}).replace(":", r"\:")
        with pytest.raises(InvalidInput, match="may not do this"):
            sam.store.run([forged.replace(":content", f"'{content}'")])
    with pytest.raises(InvalidInput):
        sam.store.run(["DELETE FROM tightrope_entries"])
