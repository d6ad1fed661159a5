"""The ledger: what counts, who may, what is noticed."""

FOLDER = "tests/unit/ledger/test_"


def _book(name: str) -> str:
    return f"{FOLDER}book.py::test_{name}"


def _hostile(name: str) -> str:
    return f"{FOLDER}hostile.py::test_{name}"


OPEN = _book("an_open_reservation_counts_in_full_and_a_settled_one_by_what_was_released")
WHOLE = _book("a_run_whose_steps_hang_together_is_all_or_nothing")
ADVANCE = _book("nothing_comes_back_where_releases_are_chosen_in_advance")
LAST_STEP = _book("what_is_fixed_in_advance_is_used_to_the_last_step")
WITHIN = _book("whatever_is_reserved_stays_within_the_total")
REFUSALS = _book("refusals")
FORGED = _hostile("an_entry_that_nobody_would_have_decided_is_damage")
UNIT = _hostile("the_unit_of_privacy_is_that_of_the_data_set")
UNSAID = _hostile("a_reservation_of_which_nothing_was_announced_is_not_settled_for_nothing[sqlite]")
COPY = _hostile("two_that_spend_one_reservation_are_told_apart[sqlite]")
VANISHED, BEHIND = (
    _hostile("a_data_set_that_vanished_is_missed"),
    _hostile("heads_of_others_are_seen_while_a_ledger_is_open"),
)
EDITED = f"{FOLDER}store.py::test_an_edit_and_a_rollback_are_noticed[sqlite]"
COPIES = f"{FOLDER}connected.py::test_copies_of_a_run_do_not_spend_a_step_twice"
SEEDED = f"{FOLDER}connected.py::test_what_is_not_private_has_no_price"
THREADS = f"{FOLDER}connected.py::test_threads_are_counted_and_other_processes_refuse"

ACCOUNTS, FILES = (f"{FOLDER}{name}.py::test_" for name in ("accounts", "files"))
LOGIN = f"{ACCOUNTS}the_log_names_who_logged_in_whatever_role_was_put_on"
BEGINS = f"{ACCOUNTS}a_spender_begins_no_data_set"
WAITS = f"{ACCOUNTS}a_reader_keeps_no_writer_waiting"
SECRETS = f"{FILES}a_password_in_the_query_is_not_shown"
SKIPPED = f"{FILES}no_statement_changes_or_skips_an_entry"

FAULTS = [
    ("ledger/store.py::Store._account", '"SELECT session_user"', '"SELECT current_user"', LOGIN),
    ("ledger/store.py", "= session_user AND", "= current_user AND", LOGIN),
    ("ledger/store.py", "number > 1 AND ", "", BEGINS),
    (
        "ledger/store.py::grant_roles",
        'f"GRANT SELECT, UPDATE ON tightrope_turns TO {spender}, {owner}"',
        'f"GRANT SELECT, UPDATE ON tightrope_turns TO {readers}"',
        WAITS,
    ),
    ("ledger/store.py", '("password", "sslpassword")', "()", SECRETS),
    (
        "ledger/migrations/versions/v0002_order.py",
        ") OR EXISTS (SELECT 1 FROM tightrope_entries WHERE rowid = NEW.rowid)",
        ")",
        SKIPPED,
    ),
    # a settled run that hangs together, or was fixed in advance, comes back in part
    ("ledger/reservation.py::Reservation.charges", "_afresh(self.process)", "True", WHOLE),
    (
        "ledger/reservation.py::Reservation.charges",
        "self.settled is not None and not in_advance and _afresh(self.process)",
        "self.settled is not None and _afresh(self.process)",
        ADVANCE,
    ),
    # an open reservation counts by what was spent of it
    (
        "ledger/reservation.py",
        "if self.settled == 0 or kept == 0:",
        "kept = kept if self.settled is not None else min(kept, self.spent)\n"
        "        if self.settled == 0 or kept == 0:",
        OPEN,
    ),
    ("ledger/book.py::Book.settle", "released is None and reservation.spent == 0", "False", UNSAID),
    (
        "ledger/book.py::Book.settle",
        "reservation.spent <= steps <= reservation.steps",
        "0 <= steps <= reservation.steps",
        FORGED,
    ),
    ("ledger/book.py::Book.spend", "steps > reservation.steps", "False", REFUSALS),
    ("ledger/book.py::Book.spend", "since != reservation.spent", "since > reservation.spent", COPY),
    ("ledger/book.py::Book._begun", "name in self.reservations", "False", FORGED),
    ("ledger/book.py::Book._take_in", "self._charge(before, -1)", "self._charge(before, -2)", OPEN),
    ("ledger/book.py::Book.used", "pieces_of(process) * times", "times", LAST_STEP),
    # the share of delta of an order, the count of a kind
    (
        "ledger/meter.py::RenyiMeter.__init__",
        "delta * part",
        "1e3 * delta",
        WITHIN,
    ),
    ("ledger/meter.py::ExactMeter.together", "times * count", "times", LAST_STEP),
    (
        "ledger/terms.py::Terms.check_process",
        "adjacency is not self.adjacency",
        "adjacency is None",
        REFUSALS,
    ),
    ("ledger/terms.py::Terms.check_process", "records != self.records", "records < 1", UNIT),
    ("ledger/log.py::_after", 'f"{before}\\n{content}"', 'f"{before.number}"', EDITED),
    ("ledger/office.py::BudgetLedger._bring_up", "book.head.number < kept.number", "False", BEHIND),
    (
        "ledger/office.py::BudgetLedger.names",
        "{*self.store.names(), *self._heads.read()}",
        "{*self.store.names()}",
        VANISHED,
    ),
    (
        "ledger/spending.py::in_force",
        "found or (_ANYWHERE[-1] if _ANYWHERE else None)",
        "found or None",
        THREADS,
    ),
    ("train/spending.py", "            check_private(self.forfeited)\n", "", SEEDED),
    ("train/spending.py::Reserved._take", "held.spent", "0", COPIES),
]
