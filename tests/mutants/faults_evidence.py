"""Certificates and the command: what is refused before it can do harm."""

FOLDER = "tests/unit/test_cli_mistakes.py::test_"

EDITED = f"{FOLDER}an_edited_certificate_is_neither_signed_nor_given_a_title"
KEPT = f"{FOLDER}a_fit_never_overwrites_an_earlier_one"
KEYS = f"{FOLDER}the_wrong_half_of_a_key_is_named"

FAULTS = [
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
