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
    ("evidence/run_folder.py", "if met != known:", "if not met:", CHANGED),
    ("evidence/run_folder.py", "if chain.decode", "if False and chain.decode", CHANGED),
    ("evidence/run_folder.py", "(folder / name).is_symlink()", "False", CHANGED),
    ("evidence/run_folder.py", 'run["steps"] == journal.releases', "True", FEWER),
    (
        "evidence/run_folder.py",
        '"sampling": repr(getattr(parts[-1], "sampling", None)),',
        "",
        OTHER_PROCESS,
    ),
    ("evidence/run_folder.py", "if first != second:", "if False:", OTHER_PROGRAM),
    ("evidence/run_folder.py", 'run["length"] != "planned" or', "True or", AFTERWARDS),
    ("evidence/run_folder.py", "counted < journal.releases", "counted < 0", COUNTED_LESS),
    (
        "evidence/run_folder.py",
        "not _alike(reservation.process",
        "False and (reservation.process",
        COUNTED_LESS,
    ),
    (
        "evidence/verify.py",
        "if claimed is None:\n        return Check(NO_PROMISE",
        "if claimed is None:\n        return Check(DECISIVE",
        USELESS,
    ),
    ("validate.py", "delta * records >= 1.0", "delta * records > 1.0", USELESS),
    ("validate.py", "if delta >= 0.5:", "if delta > 0.5:", USELESS),
    ("evidence/check.py", '"promises nothing": 4', '"promises nothing": 0', NOT_0),
    ("evidence/certificate.py", 'certificate["chain"] != chain_of(certificate)', "False", EDITED),
    ("evidence/certificate.py", "    unedited(certificate)\n", "", EDITED),
    ("evidence/signature.py", "unedited(certificate), key", "certificate, key", EDITED),
    (
        "cli/convex_command.py",
        '(out, out.parent / "certificate.json", out.parent / "data.key")',
        "(out,)",
        KEPT,
    ),
    ("evidence/signature.py", ".st_mode & 0o077", ".st_mode & 0o007", KEYS),
    (
        "audit/noise_test.py",
        "except (DoesNotApply, NotCertified):",
        "except InvalidInput:",
        "tests/attacks/test_audit_evidence.py::test_noise_that_is_missing_is_told_where_no_epsilon_is_known",
    ),
    (
        "audit/noise_test.py",
        'check_real(miss, "miss", low=_LEAST_MISS, high=1.0)',
        "pass",
        "tests/attacks/test_audit_evidence.py::test_a_test_of_the_noise_says_what_it_allows_to_miss",
    ),
]
