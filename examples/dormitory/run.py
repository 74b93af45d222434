"""Breakfast in a dormitory: locks and phones, a broker, a back end, and a ledger that is right.

    python examples/dormitory/run.py

Everybody leaves their room within a second or two, half of them with a card and half by phone, and
holds a card to the canteen's door. Amid that a process of the back end is killed with -9. In the
end what the locks did is compared with what the ledger says: every unlock is in it, once.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import BinaryIO

from building import CANTEEN, DOORS, HOST, Floor, Resident

from weir import sync

HERE = Path(__file__).parent
PHONES_AT_ONCE = 16
WITHIN_SECONDS = 120.0


def main() -> int:
    """Live through a breakfast; 0 if the ledger is right."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--residents", type=int, default=1_000)
    residents = lodged(parser.parse_args().residents)
    floors = [Floor(number) for number in range(residents[-1].floor + 1)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and so stop what was started
    with tempfile.TemporaryDirectory(prefix="dormitory-") as name, ExitStack() as stack:
        folder, port = Path(name), free_port()
        log = stack.enter_context((folder / "log").open("ab"))
        ledger = folder / "ledger.db"
        url = f"weir://{HOST}:{port}"
        say("building", f"{len(residents):,} rooms on {floors[-1].number} floors, and a canteen")
        node = ("serve", "--data", str(folder / "node"), "--port", str(port))
        stack.enter_context(weir(log, *node))
        with sync.connect(url) as w:
            w.create_topic("wishes")
            w.create_topic("commands", partitions=len(floors))
            w.create_topic("unlocks", partitions=2)
            say("broker", f"a node of weir at {url}")
            os.environ["DORMITORY_LEDGER"] = str(ledger)
            work = ("work", "backend:app", "--url", url, "--json", "--cluster")
            stack.enter_context(weir(log, *work, "desk"))
            crew = Crew(stack.enter_context(weir(log, *work, "ledger", "--min", "2", "--max", "4")))
            say("back end", "handlers in processes of `weir work`, which begins more when needed")
            rooms = stack.enter_context(ThreadPoolExecutor(len(floors) + PHONES_AT_ONCE))
            lives = begin_breakfast(rooms, port, residents, floors)
            watch(ledger, expected(residents), crew, lives)
            until_all_acked(w)
            refused = sum(1 for _ in w.reader("wishes.refused", follow=False))
        return judged(floors, residents, rows_of(ledger), refused)


def lodged(count: int) -> list[Resident]:
    """Give each a room; every other one has a phone, and a tenth of these try another's door."""
    residents = []
    for number in range(count):
        floor, door = 1 + number // DOORS, number % DOORS
        strange = number % 20 == 1
        wish = (door + 1) % DOORS if strange else door
        residents.append(Resident(number, floor, door, number % 2 == 1, wish))
    return residents


def expected(residents: Sequence[Resident]) -> int:
    """Return how many unlocks there will be: at the canteen, and of rooms."""
    return len(residents) + sum(one.wish == one.door for one in residents)


def begin_breakfast(
    rooms: ThreadPoolExecutor, port: int, residents: Sequence[Resident], floors: Sequence[Floor]
) -> list[Future[None]]:
    """Let all floors and phones live, at once."""
    lives = []
    for floor in floors:
        its = [one for one in residents if floor.number in (CANTEEN, one.floor)]
        cards = [one for one in its if floor.number == CANTEEN or not one.has_phone]
        phones = [one for one in its if floor.number != CANTEEN and one.has_phone]
        commands = sum(one.wish == one.door for one in phones)
        lives.append(rooms.submit(floor.live, port, cards, commands))
    lives += [rooms.submit(one.ask, port) for one in residents if one.has_phone]
    return lives


class Crew:
    """The processes of a `weir work`, as its lines of JSON tell of them."""

    def __init__(self, work: subprocess.Popen[str]) -> None:
        self.present: list[int] = []
        self._work = work
        threading.Thread(target=self._listen, daemon=True).start()

    def kill_one(self) -> bool:
        """End the oldest as a crash would; return whether there was one."""
        if not self.present:
            return False
        process = self.present[0]
        os.kill(process, signal.SIGKILL)
        say("", f"process {process} was killed with -9: another takes its place")
        return True

    def _listen(self) -> None:
        assert self._work.stdout is not None
        for line in self._work.stdout:
            event = json.loads(line)
            if event["event"] == "started":
                self.present.append(event["process"])
            elif event["event"] == "ended":
                self.present.remove(event["process"])
            elif event["event"] == "scaled" and event["before"]:
                say("", f"{event['before']} -> {event['wanted']} processes: {event['why']}")


def watch(ledger: Path, wanted: int, crew: Crew, lives: Sequence[Future[None]]) -> None:
    """Tell how the ledger fills until it is full; kill a process amid that."""
    began, told, killed = time.monotonic(), 0.0, False
    while (rows := len(rows_of(ledger))) < wanted or not all(life.done() for life in lives):
        passed = time.monotonic() - began
        if rows and not killed:
            killed = crew.kill_one()
        if passed - told >= 0.5:
            say("" if told else "breakfast", f"{passed:5.1f} s  {bar(rows, wanted)}")
            told = passed
        if passed > WITHIN_SECONDS:
            say("", f"not over after {passed:.0f} s")
            return
        for life in lives:
            if life.done():
                life.result()  # raises what went wrong with it
        time.sleep(0.05)
    say("", f"{time.monotonic() - began:5.1f} s  {bar(rows, wanted)}")


def until_all_acked(w: sync.Client) -> None:
    """Return when nothing comes any more, so nothing could be recorded for a second time."""
    deadline = time.monotonic() + WITHIN_SECONDS
    for topic, cluster in (("wishes", "desk"), ("unlocks", "ledger")):
        while any(one.lag for one in w.clusters(topic, cluster)) and time.monotonic() < deadline:
            time.sleep(0.05)


def judged(
    floors: Sequence[Floor], residents: Sequence[Resident], rows: Counter[tuple[int, int]], no: int
) -> int:
    """Compare what the locks did with what the ledger says."""
    done = {(floor.number, number) for floor in floors for number in floor.opened}
    missing, twice = len(done - rows.keys()), sum(count > 1 for count in rows.values())
    invented = len(rows.keys() - done)
    strange = sum(one.wish != one.door for one in residents)
    say("locks", f"{len(done):,} unlocks, of {expected(residents):,} that were asked for")
    say("desk", f"{no} wishes refused, of {strange} for another's door: see `wishes.refused`")
    say("ledger", f"{len(rows):,} unlocks: {missing} missing, {twice} twice, {invented} invented")
    right = len(done) == expected(residents) and no == strange
    if not right or missing or twice or invented:
        print("\nThe ledger is WRONG.")
        return 1
    print("\nEvery unlock is recorded, once.")
    return 0


def rows_of(ledger: Path) -> Counter[tuple[int, int]]:
    """Return how often each unlock stands in the ledger, by floor and number."""
    with closing(sqlite3.connect(ledger, timeout=30)) as database:
        if not database.execute("select 1 from sqlite_master where name = 'unlocks'").fetchone():
            return Counter()
        return Counter(database.execute("select floor, number from unlocks"))


@contextmanager
def weir(log: BinaryIO, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command of weir while the block runs; what it has to say of itself goes to a file."""
    command = [sys.executable, "-m", "weir.cli", *words]
    # A session of its own: Ctrl-C is for this process, which then stops the others in turn.
    with subprocess.Popen(
        command, cwd=HERE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def free_port() -> int:
    """Return a port that nobody uses now."""
    with socket.create_server((HOST, 0)) as free:
        port: int = free.getsockname()[1]
        return port


def bar(rows: int, wanted: int) -> str:
    """Draw how full the ledger is."""
    full = 30 * rows // wanted
    return f"{'█' * full}{'░' * (30 - full)} {rows:,} of {wanted:,} unlocks in the ledger"


def say(who: str, what: str) -> None:
    """Print a line, with who it is about in front."""
    print(f"{who:10}{what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
