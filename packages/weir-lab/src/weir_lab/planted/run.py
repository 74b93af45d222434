"""Plants each bug in turn, and runs the tests that must fail beside it.

    python -m weir_lab.planted.run [NAME ...]

It prints JSON. Tests are run in this process, from the root of the repository: first all of them as
the code is, when none may fail, then those of each bug. A bug is caught if the line that differs
was run and a test failed.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Sequence

import msgspec

from weir.errors import WeirError
from weir_lab.planted.access import BUGS as OF_ACCESS
from weir_lab.planted.bug import Bug
from weir_lab.planted.hosts import OF_HOSTS
from weir_lab.planted.lineages import OF_LINEAGES
from weir_lab.planted.producers import OF_PRODUCERS
from weir_lab.planted.replicas import OF_REPLICAS
from weir_lab.planted.sets import BUGS as OF_SETS
from weir_lab.planted.tags import OF_TAGS

#: All bugs that tests must miss.
BUGS: tuple[Bug, ...] = (
    *OF_ACCESS, *OF_TAGS, *OF_SETS, *OF_LINEAGES, *OF_PRODUCERS, *OF_HOSTS, *OF_REPLICAS,
)  # fmt: skip
_PASSED, _FAILED = 0, 1
#: Without plugins that would keep something, or share the tests out to other processes.
_OPTIONS = ("-q", "-x", "--no-header", "-p", "no:cacheprovider", "-n", "0")


class PlantedFailed(WeirError):
    """The tests say nothing of bugs; the message says why."""


class Found(msgspec.Struct, frozen=True):
    """What became of one bug: how often its line was run, and whether a test failed."""

    name: str
    rule: str
    touched: int
    failed: bool
    seconds: float

    @property
    def caught(self) -> bool:
        """Whether a test noticed."""
        return self.failed and self.touched > 0


class Result(msgspec.Struct, frozen=True):
    """How many bugs were planted and caught; the names of the others; then each."""

    planted: int
    caught: int
    missed: list[str]
    seconds: float
    each: list[Found]


def run(bugs: Sequence[Bug]) -> Result:
    """Plant bugs. Raises `PlantedFailed` if a test fails without one, and `PlantingRefused`."""
    began = time.perf_counter()
    tests = list(dict.fromkeys(test for bug in bugs for test in bug.tests))
    code = _pytest(tests)
    if code != _PASSED:
        raise PlantedFailed(f"tests fail without any bug (pytest ended with {code}): mend them")
    found = [_plant(bug) for bug in bugs]
    missed = [one.name for one in found if not one.caught]
    seconds = time.perf_counter() - began
    return Result(len(found), len(found) - len(missed), missed, seconds, found)


def _plant(bug: Bug) -> Found:
    began = time.perf_counter()
    with bug.planted() as patch:
        code = _pytest(bug.tests)
        touched = patch.touched
    if code not in (_PASSED, _FAILED):
        raise PlantedFailed(f"the tests of {bug.name} did not run (pytest ended with {code})")
    return Found(bug.name, bug.rule, touched, code == _FAILED, time.perf_counter() - began)


def _pytest(tests: Sequence[str]) -> int:
    import pytest

    with contextlib.redirect_stdout(sys.stderr):
        return int(pytest.main([*_OPTIONS, *tests]))


def main() -> None:
    """Plant the bugs that the command line names, or all."""
    parser = argparse.ArgumentParser(prog="python -m weir_lab.planted.run", description=__doc__)
    parser.add_argument("names", nargs="*", help="of bugs [all]")
    wanted = parser.parse_args().names
    known = {bug.name: bug for bug in BUGS}
    if unknown := [name for name in wanted if name not in known]:
        parser.error(f"no bug is named {unknown[0]}: there are {', '.join(known)}")
    result = run([known[name] for name in wanted] or BUGS)
    print(msgspec.json.format(msgspec.json.encode(result)).decode())
    sys.exit(1 if result.missed else 0)


if __name__ == "__main__":
    main()
