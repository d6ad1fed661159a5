"""Two examinations: does a program keep examples apart, and is a live run what it will certify?

check_program(model, loss, example) proves a loss, also one that is trained by another library or by
hand. check_run(run) tests the noise, the sampler, the clip and the counting of a private run.
"""

from tightrope.train.doctor.laws import Diagnosis, Finding, Verdict
from tightrope.train.doctor.program import ProgramDiagnosis, check_program
from tightrope.train.doctor.run import check_run

__all__ = ["Diagnosis", "Finding", "ProgramDiagnosis", "Verdict", "check_program", "check_run"]
