"""What all tests share: hypothesis profiles and a cache directory of the run's own."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile

import pytest
from hypothesis import HealthCheck, settings

if "VLUG_CACHE_DIR" not in os.environ:  # the workers of pytest-xdist inherit it
    os.environ["VLUG_CACHE_DIR"] = tempfile.mkdtemp(prefix="vlug-tests-")
    # registered before anything of vlug's, so it runs after what writes at exit
    atexit.register(shutil.rmtree, os.environ["VLUG_CACHE_DIR"], ignore_errors=True)


@pytest.fixture(autouse=True)
def said_once() -> None:
    """What is said once in a process is said once in a test, whatever ran before."""
    heuristics = sys.modules.get("vlug.heuristics")
    if heuristics is not None:
        heuristics._warned.clear()


settings.register_profile(
    "ci", max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("fuzz", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
