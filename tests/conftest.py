"""Laws are checked on the same examples each time; HYPOTHESIS_PROFILE=explore finds new ones."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


@pytest.fixture(autouse=True)
def _a_ledger_of_its_own() -> Iterator[None]:
    """Fits of one test are no fits of another."""
    yield
    module = sys.modules.get("tightrope.estimators.ledger")
    if module is not None:
        module.LEDGER._fits.clear()
