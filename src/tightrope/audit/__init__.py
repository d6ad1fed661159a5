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

_NEED_TORCH = ["GradientCanaries", "InputCanaries", "audit_inputs", "audit_training"]
_NEED_TORCH += ["input_canaries", "planted"]
__all__ = ["Audit", "FolderAudit", "GradientCanaries", "InputCanaries", "RocComparison"]
__all__ += ["audit_estimator", "audit_estimator_runs", "audit_folder", "audit_inputs"]
__all__ += ["audit_many_runs", "audit_one_run", "audit_repeated", "audit_training"]
__all__ += ["input_canaries", "planted", "roc_against", "save_audit"]


def __getattr__(name: str) -> Any:
    """The attacks on torch models are imported when asked for."""
    if name not in _NEED_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tightrope.audit import training_attack

    return getattr(training_attack, name)
