"""Certificates and the command: what is refused before it can do harm."""

FOLDER = "tests/unit/test_cli_mistakes.py::test_"

EDITED = f"{FOLDER}an_edited_certificate_is_neither_signed_nor_given_a_title"
KEPT = f"{FOLDER}a_fit_never_overwrites_an_earlier_one"
KEYS = f"{FOLDER}the_wrong_half_of_a_key_is_named"

_FOLDER = "tests/unit/evidence/test_run_folder.py::test_"
CHANGED = f"{_FOLDER}a_folder_that_was_changed_does_not_hold"
FEWER = f"{_FOLDER}a_certificate_of_fewer_releases_does_not_hold"
OTHER_PROCESS = f"{_FOLDER}a_certificate_of_another_process_does_not_hold"
OTHER_PROGRAM = f"{_FOLDER}a_certificate_of_another_program_does_not_hold"
AFTERWARDS = f"{_FOLDER}a_plan_that_was_made_afterwards_does_not_hold"
COUNTED_LESS = f"{_FOLDER}a_ledger_that_counted_less_contradicts_a_forged_folder"
USELESS = (
    "tests/unit/evidence/test_verdicts.py::test_a_true_claim_that_protects_no_one_does_not_hold"
)
NOT_0 = "tests/unit/evidence/test_verdicts.py::test_every_verdict_has_an_exit_code_of_its_own"

FAULTS = [
    ("evidence/run_folder.py::read_journal", "met != places", "not met", CHANGED),
    ("evidence/run_folder.py::Counted.follow", "chain.decode", "False and chain.decode", CHANGED),
    ("evidence/run_folder.py::read_state", "(folder / name).is_symlink()", "False", CHANGED),
    ("evidence/run_folder.py::_releases", 'run["steps"] == journal.last', "True", FEWER),
    (
        "evidence/run_folder.py",
        '"sampling": repr(getattr(parts[-1], "sampling", None)),',
        "",
        OTHER_PROCESS,
    ),
    ("evidence/run_folder.py::_isolation", "first != second", "False", OTHER_PROGRAM),
    ("evidence/run_folder.py::_stated_before", 'run["length"] != "planned"', "True", AFTERWARDS),
    ("evidence/run_folder.py::_ledger", "counted < journal.last", "counted < 0", COUNTED_LESS),
    (
        "evidence/run_folder.py::_ledger",
        "getattr(reserved, part, None) != getattr(ran, part, None)",
        "False",
        COUNTED_LESS,
    ),
    (
        "evidence/verify.py::_statement",
        "Check(NO_PROMISE, True, words)",
        "Check(DECISIVE, True, words)",
        USELESS,
    ),
    ("validate.py::no_promise", "delta * records >= 1.0", "delta * records > 1.0", USELESS),
    ("validate.py::no_promise", "delta >= 0.5", "delta > 0.5", USELESS),
    (
        "evidence/check.py::Verdict.code",
        '{"holds": 0, "fails": 1, "not decided": 3, "promises nothing": 4}',
        '{"holds": 0, "fails": 1, "not decided": 3, "promises nothing": 0}',
        NOT_0,
    ),
    (
        "evidence/certificate.py::unedited",
        'certificate["chain"] != chain_of(certificate)',
        "False",
        EDITED,
    ),
    ("evidence/certificate.py", "    unedited(certificate)\n", "", EDITED),
    ("evidence/signature.py::signature_by", "unedited(certificate)", "certificate", EDITED),
    (
        "cli/table_command.py::fit",
        "(out, out.parent / FILE)",
        "(out,)",
        KEPT,
    ),
    (
        "evidence/signature.py::_secret",
        "Path(path).stat().st_mode & 0o077",
        "Path(path).stat().st_mode & 0o007",
        KEYS,
    ),
    (
        "audit/noise_test.py::_epsilon",
        "(DoesNotApply, NotCertified)",
        "InvalidInput",
        "tests/attacks/test_audit_evidence.py::test_noise_that_is_missing_is_told_where_no_epsilon_is_known",
    ),
    (
        "audit/noise_test.py::NoiseSeen.test",
        'check_real(miss, "miss", low=_LEAST_MISS, high=1.0)',
        "pass",
        "tests/attacks/test_audit_evidence.py::test_a_test_of_the_noise_says_what_it_allows_to_miss",
    ),
]
