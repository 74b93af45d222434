"""Many seeds of sets, and of the transport of packets, played by processes of their own beside all
other tests.

Their first seed is drawn by the hash of weir's code, so that each change of it is played in other
worlds; WEIR_FIRST_SET_SEED overrules it.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from rigs.drawn_mutants import code_digest
from weir.server.interpreter import environment

SEEDS = int(os.environ.get("WEIR_SET_SEEDS", "24"))
TOC_SEEDS = int(os.environ.get("WEIR_TOC_SEEDS", "60"))
#: Seeds are drawn below it.
_SEEDS_MOST = 1_000_000_000
#: What `weir sim` plays, and how many seeds of it, for the test that judges them.
JUDGES = {
    "test_every_promise_is_kept_in_drawn_worlds": ("run", SEEDS),
    "test_every_invariant_holds_in_drawn_worlds_of_packets": ("toc", TOC_SEEDS),
}
#: Of each player: what it prints, and a file that is locked for as long as it plays.
_SAID = ("out", "err")
_AT_WORK = "at-work"

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


def first_seed() -> int:
    """Return the first seed that is played: as it was told, or as weir's code draws it."""
    told = os.environ.get("WEIR_FIRST_SET_SEED")
    return int(told) if told else int.from_bytes(code_digest()[:8], "big") % _SEEDS_MOST


class ManySeeds:
    """Processes that play seeds at the lowest priority, one for each core."""

    def __init__(self) -> None:
        """Take a folder for what they say; they begin when they are told to."""
        self._files = tempfile.TemporaryDirectory(prefix="weir-seeds-")
        self.folder = Path(self._files.name)
        self._players: list[subprocess.Popen[bytes]] = []

    def begin(self, judges: Iterable[str] = JUDGES) -> None:
        """Play what these tests judge, unless they do."""
        if self._players:
            return
        first = first_seed()
        for what, seeds in (JUDGES[judge] for judge in judges):
            count = min(os.cpu_count() or 1, seeds)
            bounds = [first + seeds * i // count for i in range(count + 1)]
            self._players += [self._play(what, a, b - a) for a, b in pairwise(bounds)]

    def _play(self, what: str, first: int, count: int) -> subprocess.Popen[bytes]:
        asked = ("sim", what, "--seeds", str(count), "--seed", str(first), "--json")
        out, err, at_work = (self.folder / f"{what}-{first}.{name}" for name in (*_SAID, _AT_WORK))
        with out.open("wb") as said, err.open("wb") as complained, at_work.open("wb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)  # the player has it, too, and for as long as it lives
            player = subprocess.Popen(
                [sys.executable, "-P", "-c", _PLAYER, *asked],
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=complained,
                pass_fds=[held.fileno()],
            )
        os.setpriority(os.PRIO_PROCESS, player.pid, 19)
        return player

    def stop(self) -> None:
        """Let all players end, done or not."""
        for player in self._players:
            player.kill()
            player.communicate()

    def end(self) -> None:
        """Stop, and forget what was said."""
        self.stop()
        self._files.cleanup()


def judged(folder: Path, what: str = "run") -> list[tuple[dict[str, Any], str]]:
    """Wait for the last seed of all players of this that write there; return what became of all,
    and what was said of those that broke a promise. Any process may ask.
    """
    found = []
    for at_work in sorted(folder.glob(f"{what}-*.{_AT_WORK}")):
        with at_work.open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_SH)
        said, complaints = (at_work.with_suffix(f".{one}").read_text() for one in _SAID)
        assert said, f"a player of seeds ended early: {complaints}"
        found.append((json.loads(said), complaints))
    assert found, f"no seeds are played in {folder}"
    return found
