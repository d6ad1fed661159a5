"""What a third party can check: certificates and their verification.

>>> from tightrope import FullBatch, NoisySGD
>>> from tightrope.evidence import certify, holds, verify
>>> certificate = certify(NoisySGD(FullBatch(), noise_multiplier=8.0, steps=10), delta=1e-5)
>>> holds(verify(certificate))
True
"""

from tightrope.evidence.certificate import Title, certify, read, write
from tightrope.evidence.check import Check, State, Verdict, holds, verdict
from tightrope.evidence.run_facts import RunFacts
from tightrope.evidence.signature import Trust, new_key_pair, signed
from tightrope.evidence.verify import verify

__all__ = ["Check", "RunFacts", "State", "Title", "Trust", "Verdict", "certify", "holds"]
__all__ += ["new_key_pair", "read", "signed", "verdict", "verify", "write"]
