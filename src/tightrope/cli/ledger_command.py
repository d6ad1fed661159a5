"""`tightrope ledger`: one budget for all releases on a data set."""

from __future__ import annotations

import json
import re
import sys
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tightrope.cli import options as opt
from tightrope.cli.options import option
from tightrope.errors import InvalidInput

if TYPE_CHECKING:
    from tightrope.interop import Setting
    from tightrope.ledger.office import BudgetLedger

app = typer.Typer(
    help="One budget for all releases on a data set: reserved, spent, settled.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Where = Annotated[
    str,
    option(
        "A file, or postgresql://user@host/db.", "LEDGER", "--ledger", envvar="TIGHTROPE_LEDGER"
    ),
]
Heads = Annotated[
    Path | None,
    option(
        "Keep the newest heads in this file; a ledger set back to an older copy is refused.",
        "FILE",
        envvar="TIGHTROPE_LEDGER_HEADS",
    ),
]
Key = Annotated[
    Path | None,
    option("A secret key to sign the entry with.", "FILE", "--sign", envvar="TIGHTROPE_LEDGER_KEY"),
]
Name = Annotated[str, typer.Argument(help="The data set.")]
DEFAULT = "ledger.db"


@app.command("init")
def init(ledger: Where = DEFAULT) -> None:
    """Make a ledger, or bring an older one up to date. In PostgreSQL, its three roles too."""
    from tightrope.ledger import create_ledger

    made = create_ledger(ledger)
    from tightrope.ledger.store import ROLES, grant_roles

    grant_roles(made.store)
    print(f"Ledger: {made.store}")
    if not made.store.is_sqlite:
        print(f"Roles: {', '.join(ROLES)}. Give them out, for example: GRANT {ROLES[1]} TO ann;")


@app.command("add")
def add(
    name: Name,
    ledger: Where = DEFAULT,
    heads: Heads = None,
    key: Key = None,
    epsilon: Annotated[str | None, option("The total epsilon, with --delta.", "EPS")] = None,
    delta: Annotated[str | None, option("The total delta, with --epsilon.", "DELTA")] = None,
    mu: Annotated[str | None, option("Or: the total as a Gaussian mu.", "MU")] = None,
    advantage: Annotated[
        str | None, option("Or: the membership advantage allowed in total.", "X")
    ] = None,
    tpr: Annotated[str | None, option("Or: the hit rate allowed at --fpr.", "X")] = None,
    fpr: Annotated[str | None, option("The false alarm rate for --tpr.", "X")] = None,
    adjacency: Annotated[
        str, option("add-or-remove, replace-one or zero-out.", "RELATION")
    ] = "add-or-remove",
    unit: Annotated[
        str, option("Whose privacy is protected: person, household, device...", "WORD")
    ] = "person",
    records: Annotated[int, option("The most records that one such unit has.", "N")] = 1,
    spender: Annotated[
        list[str] | None,
        option("Who may spend; repeat it for several. Default: everybody.", "NAME"),
    ] = None,
    in_advance: Annotated[
        bool,
        option(
            "Releases are chosen without looking at earlier ones; they are composed exactly.",
            None,
            "--in-advance",
        ),
    ] = False,
) -> None:
    """Add a data set with the total that may ever be spent on it. It cannot be changed later.

    Example: `tightrope ledger add patients --epsilon 3 --delta 1e-6`
    """
    from tightrope.cli.tables import remark
    from tightrope.ledger import ALONG_THE_WAY, IN_ADVANCE, Terms, Total
    from tightrope.validate import no_promise

    names = ("epsilon", "delta", "mu", "advantage", "true_positive_rate", "false_positive_rate")
    given = dict(zip(names, (epsilon, delta, mu, advantage, tpr, fpr), strict=True))
    total = Total(**{k: opt.parse_number(v, k) for k, v in given.items() if v is not None})
    terms = Terms(
        name,
        total,
        adjacency=adjacency,  # type: ignore[arg-type]
        unit=unit,
        records=records,
        spenders=tuple(spender or ("*",)),
        choices=IN_ADVANCE if in_advance else ALONG_THE_WAY,
    )
    opened = _opened(ledger, heads, key)
    opened.add(terms)
    print(f"{name}: {total}")
    remark([_look_alike(name, other) for other in opened.alike(name)])
    why = None if epsilon is None else no_promise(total.epsilon or 0.0, total.delta or 0.0)
    remark([] if why is None else [why])


def _look_alike(name: str, other: str) -> str:
    from tightrope.evidence.files import printable

    return (
        f"{name!r} looks like {printable(other)!r}, which is in this ledger with a budget of its "
        "own. If they are the same people, their losses add up: spend from one of the two."
    )


@app.command("reserve")
@opt.with_setting()
def reserve(
    setting: Setting,
    name: Name,
    ledger: Where = DEFAULT,
    heads: Heads = None,
    key: Key = None,
    source: opt.Source = None,
    note: Annotated[str, option("What it is for.", "TEXT")] = "",
) -> None:
    """Reserve what a run may spend, for instance one of another program; prints an id.

    Example: `tightrope ledger reserve patients --rate 0.01 --noise 1.1 --steps 1000`
    """
    process = opt.reading_of(setting, source, f"ledger reserve {name}").certifiable()
    opened = _opened(ledger, heads, key)
    print(opened.reserve(name, opened.book(name).terms.of_one(process), note).id)


@app.command("settle")
def settle(
    name: Name,
    reservation: Annotated[str, typer.Argument(help="Its id.")],
    ledger: Where = DEFAULT,
    heads: Heads = None,
    key: Key = None,
    released: Annotated[
        int | None, option("Steps that were released. Default: those announced, if any were.", "N")
    ] = None,
    certificate: Annotated[Path | None, option("The run's certificate.json.", "FILE")] = None,
) -> None:
    """End a reservation. What was neither announced nor released can be spent again."""
    from tightrope.evidence.files import MOST_BYTES, file_of, printable, read_most

    mark = None
    if certificate is not None:
        try:
            mark = sha256(read_most(file_of(certificate), MOST_BYTES)).hexdigest()
        except InvalidInput as error:
            raise InvalidInput(f"{printable(certificate)} cannot be read: {error}.") from None
    _opened(ledger, heads, key).settle(name, reservation, released, mark)
    print(f"Settled: {reservation}")


@app.command("status")
def status(
    name: Annotated[str | None, typer.Argument(help="One data set; default: all.")] = None,
    ledger: Where = DEFAULT,
    heads: Heads = None,
    as_json: opt.AsJson = False,
) -> None:
    """How much of each budget is left. Exit code 1 where a log is damaged."""
    from tightrope.evidence.files import printable
    from tightrope.ledger.views import standing_view, standings

    opened = _opened(ledger, heads)
    rows = standings(opened) if name is None else [standing_view(opened, name)]
    if as_json:
        print(json.dumps(rows))
    for row in () if as_json else rows:
        if "damaged" in row:
            print(f"{printable(row['dataset'])!r}: DAMAGED: {printable(row['damaged'])}")
            continue
        total = ", ".join(f"{key} {value:g}" for key, value in row["total"].items())
        state = "OVERSPENT" if row["overspent"] else f"{100 * (1 - row['share']):.1f} % left"
        print(f"{row['dataset']}: {state} of {total} ({row['open']} open)\n  head {row['head']}")
    if any("damaged" in row for row in rows):
        raise typer.Exit(1)


@app.command("history")
def history(
    name: Name, ledger: Where = DEFAULT, heads: Heads = None, as_json: opt.AsJson = False
) -> None:
    """Who reserved what, when, and how it ended."""
    from tightrope.ledger.views import history_view

    rows = history_view(_opened(ledger, heads), name)
    if as_json:
        print(json.dumps(rows))
        return
    if not rows:
        print(f"{name}: nothing was reserved yet.")
    for row in rows:
        parts = f"{row['at']}  {row['id']}  {row['who']}  {row['state']}"
        print(f"{parts}  {row['spent']} of {row['reserved']}  {row['words']}  {row['note']}")


@app.command("forecast")
def forecast(
    name: Name, ledger: Where = DEFAULT, heads: Heads = None, as_json: opt.AsJson = False
) -> None:
    """How long what is left will last."""
    from tightrope.ledger.views import forecast_view

    view = forecast_view(_opened(ledger, heads), name)
    if as_json:
        print(json.dumps(view))
        return
    print(f"{name}: {100 * view['share']:.1f} % of the budget is taken.")
    if "last" in view:
        print(f"{view['more_like_the_last']} more like the last one would fit ({view['last']}).")
    days = view["days_left"]
    print(
        f"No forecast: {view['no_date_because']}."
        if days is None
        else f"At this pace it lasts about {days:.1f} days."
    )


@app.command("export")
def export(
    out: Annotated[Path, option("Where to write it.", "FILE")] = Path("ledger.json"),
    ledger: Where = DEFAULT,
    heads: Heads = None,
    force: opt.Force = False,
) -> None:
    """Every log with its hash chain, as JSON: for auditors, and for safe keeping.

    Exit code 1 where a log is damaged: it is named, and left out.
    """
    from tightrope.evidence.files import printable, write_text
    from tightrope.ledger.views import export_view

    opened = _opened(ledger, heads)
    opened.store.check_not_its_file(out)
    opt.may_write(out, force)
    view = export_view(opened)
    write_text(out, json.dumps(view, indent=1) + "\n")
    print(f"Export: {out}")
    for name, why in view["damaged"].items():
        print(f"Left out: {printable(name)!r}: {printable(why)}", file=sys.stderr)
    if view["damaged"]:
        raise typer.Exit(1)


@app.command("check")
def check(
    name: Name,
    head: Annotated[
        str | None, option("A head that was kept: NUMBER:HASH, as status prints it.", "HEAD")
    ] = None,
    ledger: Where = DEFAULT,
    heads: Heads = None,
    key: Annotated[
        list[Path] | None,
        option("A public key; every entry must be signed by one of those given.", "FILE", "--key"),
    ] = None,
    trust: Annotated[Path | None, option("A folder of public keys.", "FOLDER")] = None,
) -> None:
    """Check a log: its hash chain, the price of every entry, and a head that you kept."""
    if head is not None and not re.fullmatch(r"[0-9]+:[0-9a-f]{64}", head):
        raise InvalidInput(
            f"A head is NUMBER:HASH, as `tightrope ledger status` prints it; got {head[:80]!r}."
        )
    opened = _opened(ledger, heads)
    book = opened.book(name)
    book.check_prices()
    last = book.head
    if key or trust is not None:
        from tightrope.evidence.signature import Trust, check_signatures

        check_signatures(opened.store.entries(name), Trust.of(key or (), trust))
    if head is not None and head not in {str(e.head) for e in opened.store.entries(name)}:
        from tightrope.errors import LedgerDamaged

        raise LedgerDamaged(
            f"The log of {name!r} does not lead through {head[:30]}...: it was edited or rolled "
            "back since that head was kept, or it is another log."
        )
    print(f"{name}: {last.number} entries; their hash chain and prices hold.\n  head {last}")


@app.command("serve")
def serve(
    ledger: Where = DEFAULT,
    heads: Heads = None,
    host: Annotated[
        str, option("Address; one that others can reach needs a token.", "HOST")
    ] = "127.0.0.1",
    port: opt.Port = 8410,
    token: Annotated[
        str | None,
        option(
            "Visitors must give it, where others can reach the page.",
            "TOKEN",
            envvar="TIGHTROPE_LEDGER_TOKEN",
        ),
    ] = None,
) -> None:
    """A page with what is left, who spent it, a forecast and the certificates. It only reads."""
    opened = _opened(ledger, heads)
    try:
        import uvicorn

        from tightrope.ledger.views import page_app
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"The page needs {error.name}: pip install 'tightrope[ledger]'."
        ) from None
    application: Any = page_app(opened, host, token)
    print(f"http://{host}:{port}/" + ("?token=..." if token else ""))
    uvicorn.run(application, host=host, port=port, log_level="warning")


def _opened(url: str, heads: Path | None, key: Path | None = None) -> BudgetLedger:
    from tightrope.ledger import open_ledger

    if key is None:
        return open_ledger(url, heads=heads)
    from tightrope.evidence.signature import head_signer

    return open_ledger(url, heads=heads, sign=head_signer(key))
