"""The doctor: is a live run what its certificate will say?"""

from tightrope.train.doctor.examine import check_model, check_run
from tightrope.train.doctor.verdict import Diagnosis, Finding, Verdict

__all__ = ["check_model", "check_run", "Diagnosis", "Finding", "Verdict"]
