"""The many seeds of sets are played by a process of their own, beside all other tests.

It begins with the session, of which one core waits most of the time, and its test is the last one.
A session without that test starts nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import weir

SEEDS = int(os.environ.get("WEIR_SET_SEEDS", "24"))
FIRST = int(os.environ.get("WEIR_FIRST_SET_SEED", "0"))
_FIXTURE = "many_seeds"
_SOURCE = Path(weir.__file__).parents[1]
#: Whatever ends the session closes its end of the pipe, and that ends the player.
_PLAYER = """
import os, sys, threading
from weir.cli.main import main

def end_with_the_session():
    while os.read(0, 1):
        pass
    os._exit(1)

threading.Thread(target=end_with_the_session, daemon=True).start()
sys.exit(main(sys.argv[1:]))
"""


class ManySeeds:
    """A process that plays seeds at the lowest priority."""

    def __init__(self) -> None:
        """Begin at once."""
        self._folder = tempfile.TemporaryDirectory(prefix="weir-seeds-")
        self._said, self._complained = (Path(self._folder.name, name) for name in ("out", "err"))
        asked = ("sim", "run", "--seeds", str(SEEDS), "--seed", str(FIRST), "--json")
        with self._said.open("wb") as said, self._complained.open("wb") as complained:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PLAYER, *asked],
                env={**os.environ, "PYTHONPATH": str(_SOURCE)},
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=complained,
            )
        os.setpriority(os.PRIO_PROCESS, self._process.pid, 19)

    def judged(self) -> tuple[dict[str, Any], str]:
        """Wait for the last seed; return what became of all, and what was said of those that broke
        a promise.
        """
        self._process.wait()
        said, complaints = self._said.read_text(), self._complained.read_text()
        assert said, f"the player of seeds ended with {self._process.returncode}: {complaints}"
        told: dict[str, Any] = json.loads(said)
        return told, complaints

    def end(self) -> None:
        """End, done or not."""
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()


_PLAYING: list[ManySeeds] = []


@pytest.fixture(scope="session")
def many_seeds() -> ManySeeds:
    """The player, at work since the session began, or from now on."""
    if not _PLAYING:
        _PLAYING.append(ManySeeds())
    return _PLAYING[0]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the test that waits for the player be the last one."""
    items.sort(key=_waits_for_the_player)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin before the first test, where there is one that will judge."""
    alone = not session.config.option.collectonly and not hasattr(session.config, "workerinput")
    if alone and any(_waits_for_the_player(item) for item in session.items):
        _PLAYING.append(ManySeeds())


def pytest_unconfigure() -> None:
    """End with the session, whatever ended that."""
    while _PLAYING:
        _PLAYING.pop().end()


def _waits_for_the_player(item: pytest.Item) -> bool:
    return _FIXTURE in getattr(item, "fixturenames", ())
