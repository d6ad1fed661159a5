"""Attacks on what really ran: lower bounds on epsilon that hold with a stated confidence.

An audit never proves privacy. It shows how much of the certified loss an attack can realise, and
it finds code that does not do what was accounted.
"""

from typing import TYPE_CHECKING, Any

from tightrope.audit.estimator_attack import audit_estimator, audit_estimator_runs
from tightrope.audit.folder import FolderAudit, audit_folder, save_audit
from tightrope.audit.result import (
    Audit,
    RocComparison,
    audit_many_runs,
    audit_one_run,
    audit_repeated,
    roc_against,
)

if TYPE_CHECKING:
    from tightrope.audit.gradient_attack import GradientCanaries, audit_training, planted
    from tightrope.audit.input_attack import InputCanaries, audit_inputs, input_canaries

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

_NEED_TORCH = {
    "GradientCanaries": "gradient_attack",
    "planted": "gradient_attack",
    "audit_training": "gradient_attack",
    "InputCanaries": "input_attack",
    "input_canaries": "input_attack",
    "audit_inputs": "input_attack",
}


def __getattr__(name: str) -> Any:
    """The attacks on torch models are imported when asked for."""
    if name not in _NEED_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_NEED_TORCH[name]}"), name)
