"""Many seeds of sets, played by processes of their own beside all other tests.

Their first seed is drawn by the hash of weir's code, so that each change of it is played in other
worlds; WEIR_FIRST_SET_SEED overrules it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import weir
from weir_lab.proofs.source_hash import package_hash

SEEDS = int(os.environ.get("WEIR_SET_SEEDS", "24"))
#: Seeds are drawn below it.
_SEEDS_MOST = 1_000_000_000
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


def first_seed() -> int:
    """Return the first seed that is played: as it was told, or as weir's code draws it."""
    told = os.environ.get("WEIR_FIRST_SET_SEED")
    return int(told) if told else int(package_hash(), 16) % _SEEDS_MOST


class ManySeeds:
    """Processes that play seeds at the lowest priority, one for each core."""

    def __init__(self) -> None:
        """Begin at once."""
        self._folder = tempfile.TemporaryDirectory(prefix="weir-seeds-")
        count = min(os.cpu_count() or 1, SEEDS)
        first = first_seed()
        bounds = [first + SEEDS * i // count for i in range(count + 1)]
        self._players = [self._play(a, b - a) for a, b in pairwise(bounds)]

    def _play(self, first: int, count: int) -> tuple[subprocess.Popen[bytes], Path, Path]:
        out, err = (Path(self._folder.name, f"{first}.{name}") for name in ("out", "err"))
        asked = ("sim", "run", "--seeds", str(count), "--seed", str(first), "--json")
        with out.open("wb") as said, err.open("wb") as complained:
            player = subprocess.Popen(
                [sys.executable, "-P", "-c", _PLAYER, *asked],
                env={**os.environ, "PYTHONPATH": str(_SOURCE)},
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=complained,
            )
        os.setpriority(os.PRIO_PROCESS, player.pid, 19)
        return player, out, err

    def judged(self) -> list[tuple[dict[str, Any], str]]:
        """Wait for the last seed; return what became of all, and what was said of those that broke
        a promise.
        """
        found = []
        for player, out, err in self._players:
            player.wait()
            said, complaints = out.read_text(), err.read_text()
            assert said, f"a player of seeds ended with {player.returncode}: {complaints}"
            found.append((json.loads(said), complaints))
        return found

    def end(self) -> None:
        """End, done or not."""
        for player, _, _ in self._players:
            player.kill()
            player.communicate()
        self._folder.cleanup()
