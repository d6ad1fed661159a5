"""Attacks on what really ran: lower bounds on epsilon that hold with a stated confidence.

An audit never proves privacy. It shows how much of the certified loss an attack can realise, and
it finds code that does not do what was accounted.
"""

from tightrope.audit.result import (
    Audit,
    RocComparison,
    audit_many_runs,
    audit_one_run,
    roc_against,
)

__all__ = ["Audit", "RocComparison", "audit_many_runs", "audit_one_run", "roc_against"]
