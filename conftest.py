"""Settings that all tests share."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling

#: Where tests start no processes, open no sockets and wait for no clock.
COMPUTING = re.compile(
    r"(packages/weir-\w+/)?tests/("
    + "|".join((
        "fuzz/", "golden/", "paper/", "property/", "sim/", "test_tidy.py", "unit/broker",
        "unit/codec/", "unit/device/", "unit/log/", "unit/model/", "unit/order/", "unit/raft/",
        "unit/sim/", "unit/spark/", "unit/wire/",
    ))
    + ")"
)  # fmt: skip

# No deadline: on a busy machine it would fail tests that are merely slow.
# "gate" makes the same examples from the same commit, so that a red build can be run again;
# "search" looks for new ones: HYPOTHESIS_PROFILE=search make test.
settings.register_profile("gate", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))

# A shell without job control, or nohup in one, starts background commands with SIGINT ignored, and
# every program inherits that. A program that a test starts must stop at Ctrl-C all the same.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The tests start hundreds of processes: they find what they import compiled, also where the
# environment asks that nothing be kept.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """With `-n 2 --dist loadscope`: what only computes, beside what waits most of the time.

    Tests that wait for clocks and processes stay one after the other, so that none of them has to
    be as fast beside another as alone.
    """
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class TwoLanes(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "computing" if COMPUTING.match(nodeid) else "waiting"

    return TwoLanes(config, log)


@pytest.fixture
def tell() -> Callable[..., None]:
    """Write figures by name for `make proof`, as in `tell(kills=20)`; without it do nothing."""

    def write(**figures: float) -> None:
        if path := os.environ.get("WEIR_FIGURES"):
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(figures) + "\n")

    return write


def pytest_runtest_logstart(nodeid: str) -> None:
    """Let those who wait go first when what they wait for is there."""
    if "PYTEST_XDIST_WORKER" in os.environ and COMPUTING.match(nodeid):
        os.setpriority(os.PRIO_PROCESS, 0, max(5, os.getpriority(os.PRIO_PROCESS, 0)))
