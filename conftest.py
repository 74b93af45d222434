"""Settings that all tests share; and in which order several processes run them, and beside what."""

from __future__ import annotations

import atexit
import gc
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling
    from xdist.workermanage import WorkerController

_ROOT = Path(__file__).parent
#: Where tests start no processes, open no sockets and wait for no clock.
COMPUTING = re.compile(
    r"(packages/weir-\w+/)?tests/("
    + "|".join((
        "fuzz/", "golden/", "paper/", "property/", "sim/", "test_structure.py", "test_tidy.py",
        "unit/app/core/", "unit/broker", "unit/client/core/", "unit/codec/", "unit/device/",
        "unit/model/", "unit/order/", "unit/protocol/", "unit/raft/", "unit/schema/", "unit/sim/",
        "unit/spark/", "unit/storage/", "unit/toc/",
    ))
    + ")"
)  # fmt: skip
#: All tests of these folders are one process's: Spark takes ten seconds to start in each.
TOGETHER = ("packages/weir-mq/tests/spark/", "packages/weir-lab/tests/spark/")
#: Folders and files whose tests take longest, the longest first; all others come behind. So no
#: process is left alone with much in the end.
LONGEST = (
    *TOGETHER,
    "packages/weir-lab/tests/sim/",
    "tests/test_distributions.py",
    "packages/weir-mq/tests/crash/",
    "packages/weir-lab/tests/crash/",
    "packages/weir-lab/tests/interop/",
    "packages/weir-mq/tests/interop/",
    "packages/weir-lab/tests/unit/",
    "tests/test_public_types.py",
)
#: The fixture of a test that waits for what is played beside all others.
LAST = "many_seeds"

# Commands that tests run keep contexts and tickets here, and not among the settings of the person
# who runs the tests. It goes with this process, which may load this file more than once.
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="weir-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)

# No deadline: on a busy machine it would fail tests that are merely slow.
# "gate" makes the same examples from the same commit, so that a red build can be run again;
# "search" looks for new ones: HYPOTHESIS_PROFILE=search make test.
settings.register_profile("gate", deadline=None, derandomize=True, max_examples=40)
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

# What tests make is nearly all freed by counting. By default the collector would go again and again
# through all that 800 modules and 12,000 tests consist of.
gc.set_threshold(10_000, 20, 10)


def turn_of(file: str, fixtures: tuple[str, ...] = ()) -> int:
    """Return when the tests of a file have their turn: those of the lowest number first."""
    if LAST in fixtures:
        return len(LONGEST) + 1
    return next((n for n, folder in enumerate(LONGEST) if file.startswith(folder)), len(LONGEST))


def scope_of(file: str) -> str:
    """Return what the tests of a file stay together with: all that use Spark, or nothing else."""
    return TOGETHER[0] if file.startswith(TOGETHER) else file


def next_scope(scopes: Sequence[str], computes: bool) -> str:
    """Return the first scope that only computes, or that does not; the first of all without one.

    The last of all stays the last.
    """
    wanted = (one for one in scopes[:-1] if bool(COMPUTING.match(one)) is computes)
    return next(wanted, scopes[0])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let what takes long begin first."""
    items.sort(key=_turn)


def pytest_collection_finish() -> None:
    """Keep what was found out of all later collections of garbage: it stays to the end."""
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """With `-n 3 --dist loadscope`: one process for what only computes, and all others for what
    waits most of the time. Whoever has no more of its own takes what there is.

    Of tests that wait for clocks and processes, few run at a time: each need not be much faster
    beside the others than alone.
    """
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Lanes(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid.partition("::")[0])

        def _assign_work_unit(self, node: WorkerController) -> None:
            computes = node is self.nodes[0] and self.numnodes > 1
            scope = next_scope([*self.workqueue], computes)
            self.workqueue.move_to_end(scope, last=False)
            super()._assign_work_unit(node)

    config.option.loadscopereorder = False  # else a file of many tests would come before a long one
    return Lanes(config, log)


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


def _turn(item: Any) -> int:
    path: Path = item.path
    if path.is_relative_to(_ROOT):
        path = path.relative_to(_ROOT)
    return turn_of(path.as_posix(), tuple(getattr(item, "fixturenames", ())))
