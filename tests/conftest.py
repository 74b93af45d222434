"""Settings that all tests share."""

from __future__ import annotations

import os
import sys

from hypothesis import settings

# No deadline: on a busy machine it would fail tests that are merely slow.
# "gate" makes the same examples from the same commit, so that a red build can be run again;
# "search" looks for new ones: HYPOTHESIS_PROFILE=search make test.
settings.register_profile("gate", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))

# The tests start hundreds of processes: they find what they import compiled, also where the
# environment asks that nothing be kept.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
