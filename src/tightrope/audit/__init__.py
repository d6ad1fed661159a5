"""Attacks on what really ran: lower bounds on epsilon that hold with a stated confidence.

An audit never proves privacy. It shows how much of the certified loss an attack can realise, and
it finds code that does not do what was accounted.
"""

from typing import TYPE_CHECKING, Any

from tightrope.audit.estimator_attack import audit_estimator, audit_estimator_runs
from tightrope.audit.result import (
    Audit,
    FolderAudit,
    RocComparison,
    audit_folder,
    audit_many_runs,
    audit_one_run,
    audit_repeated,
    roc_against,
    save_audit,
)

if TYPE_CHECKING:
    from tightrope.audit.training_attack import (
        GradientCanaries,
        InputCanaries,
        audit_inputs,
        audit_training,
        input_canaries,
        planted,
    )

__all__ = [
    "Audit",
    "audit_one_run",
    "audit_many_runs",
    "audit_repeated",
    "RocComparison",
    "roc_against",
    "FolderAudit",
    "audit_folder",
    "save_audit",
    "audit_estimator",
    "audit_estimator_runs",
    "GradientCanaries",
    "planted",
    "audit_training",
    "InputCanaries",
    "input_canaries",
    "audit_inputs",
]

_NEED_TORCH = ["GradientCanaries", "planted", "audit_training", "InputCanaries", "input_canaries"]
_NEED_TORCH += ["audit_inputs"]


def __getattr__(name: str) -> Any:
    """The attacks on torch models are imported when asked for."""
    if name not in _NEED_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.training_attack"), name)
