"""Every attack against an open node, a closed one and stolen folders, and against an open and a
closed set that a node has joined; and what an honest client of the closed node waits meanwhile.

Honest publishes are timed in this process, while another one attacks over and over.
"""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from weir.broker.metadata.security.access import RESCUER
from weir.client.sync.client import Client
from weir.errors import Disconnected, NotAuthenticated, Refused, WeirError
from weir.server.key_files import create_key_file
from weir.server.rescue import LOOK_SECONDS, offered
from weir.testing.nodes import NodeFailed, running_node
from weir_lab.attack import credentials, joining, key_updates, strangers, tokens
from weir_lab.attack.targets import OWN, Target, closed_target, is_in, open_target
from weir_lab.bench.bounds import check_bounds

ATTACKS: dict[str, strangers.Attack] = {
    **strangers.ATTACKS,
    **credentials.ATTACKS,
    **tokens.ATTACKS,
    **key_updates.ATTACKS,
}
#: The names of all attacks: the last ones are on a set that a node has joined.
NAMES = (*ATTACKS, *joining.ATTACKS)
#: What is tried on the node of a stolen folder besides.
RESCUE = "rescue an administrator"
_RESCUES = 3
_BEGINS_WITHIN = 30.0
Progress = Callable[[int], None]


class AttackFailed(WeirError):
    """The measurement came to no figure; the message says why."""


class Settings(msgspec.Struct, frozen=True):
    """How many honest publishes are timed, alone and beside attacks."""

    publishes: int = 2_000

    def check(self) -> None:
        """Raise `ValueError` for what cannot be measured."""
        check_bounds(publishes=(self.publishes, 100, 1 << 20))


class Result(msgspec.Struct, frozen=True):
    """How many attacks there are, and how many achieved what no peer has a right to; then which.
    Times are those of an honest client of the closed node, which publishes one after another.
    """

    attacks: int
    achieved_open: int
    achieved_closed: int
    achieved_disk: int
    of_open: list[str]
    of_closed: list[str]
    of_disk: list[str]
    alone_p99_ms: float
    beside_p99_ms: float
    p99_ratio: float


def measure(settings: Settings, progress: Progress) -> Result:
    """Attack, and measure. Raises `ValueError`, and `WeirError` where an honest client fails."""
    settings.check()
    done = 0

    def achieved(target: Target) -> list[str]:
        nonlocal done
        found = []
        for name, attack in ATTACKS.items():
            if attack(target):
                found.append(name)
            done += 1
            progress(done)
        return found

    def achieved_by_joining(joined: joining.Joined) -> list[str]:
        nonlocal done
        found = joining.attack(joined)
        for _ in joining.ATTACKS:
            done += 1
            progress(done)
        return found

    with open_target() as target:
        of_open = achieved(target)
    with joining.joined_set(is_closed=False) as joined:
        of_open += achieved_by_joining(joined)
    with closed_target() as target:
        of_closed = achieved(target)
        of_disk = steal(target)
        alone, beside = _times(target, settings.publishes)
    with joining.joined_set(is_closed=True) as joined:
        of_closed += achieved_by_joining(joined)
        of_disk += joining.steal(joined)
    return Result(
        len(NAMES), len(of_open), len(of_closed), len(of_disk), of_open, of_closed, of_disk,
        alone, beside, beside / alone,
    )  # fmt: skip


def steal(target: Target) -> list[str]:
    """Copy the data folder of a node that runs; return what is found in its bytes, and what a node
    that starts on it allows.
    """
    with tempfile.TemporaryDirectory(prefix="weir-stolen-") as name:
        copy = Path(name) / "data"
        shutil.copytree(target.folder, copy, ignore_dangling_symlinks=True)
        achieved = [f"find {what}" for what, mark in target.marks.items() if is_in(mark, copy)]
        return achieved + _serve(target, copy)


def _serve(target: Target, folder: Path) -> list[str]:
    """Start a node on the copy, without its key file and certificates; attack that. Then give it a
    key file of the thief's own.
    """
    own = folder.parent / "keys"
    create_key_file(own)
    achieved: list[str] = []
    for key_file, how in (("", ""), (str(own), ", with another key file")):
        for lock in folder.rglob("lock"):
            lock.unlink()
        # Without the right key file it may not serve at all.
        with suppress(NodeFailed), running_node(folder, shards=1, key_file=key_file) as node:
            stolen = msgspec.structs.replace(
                target, host=node.host, port=node.port, folder=str(folder), bundle=""
            )
            achieved += [name + how for name in _open(stolen, bool(key_file))]
    return achieved


def _open(stolen: Target, is_tried: bool) -> list[str]:
    """Return what a node allows that serves a stolen folder; `is_tried` if secrets of the folder
    were tried on it before.
    """
    names = ("list topics", "make an administrator", "open the set")
    achieved = [name for name in names if strangers.ATTACKS[name](stolen)]
    if not is_tried:
        for what, mark in stolen.marks.items():
            with suppress(WeirError, UnicodeError, OSError), stolen.connect("root", mark.hex()):
                achieved.append(f"log in by {what}")
    return achieved + [RESCUE] * rescue_an_administrator(stolen)


def rescue_an_administrator(stolen: Target) -> bool:
    """Make an administrator as who owns the folder of a node may, by a file in it: in the folder of
    a stolen copy everybody can write.
    """
    with offered(Path(stolen.folder)) as secret:
        for _ in range(_RESCUES):
            time.sleep(1.5 * LOOK_SECONDS)
            with suppress(NotAuthenticated):  # the node has not looked yet
                try:
                    with stolen.connect(quote(RESCUER, safe=""), secret) as client:
                        client.access.create_user("thief", "a thief's", ["admin"])
                        return True
                except (Refused, Disconnected) as error:
                    if isinstance(error, NotAuthenticated):
                        raise
                    return False
    return False


def _times(target: Target, count: int) -> tuple[float, float]:
    """Return the p99 of honest publishes in ms: alone, and beside an attacker."""
    with target.connect("mallory", "mallory's own") as honest:
        _p99(honest, count // 4)  # what is done once is done
        alone = _p99(honest, count)
        context = multiprocessing.get_context("spawn")
        begun = context.Event()
        attacker = context.Process(target=_attack, args=(target, begun), daemon=True)
        attacker.start()
        try:
            if not begun.wait(_BEGINS_WITHIN):
                raise AttackFailed("the attacker did not begin: nobody was beside the honest one")
            beside = _p99(honest, count)
            if not attacker.is_alive():
                raise AttackFailed("the attacker ended early: nobody was beside the honest one")
            return alone, beside
        finally:
            attacker.kill()
            attacker.join()


def _p99(client: Client, count: int) -> float:
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        client.publish(OWN, b"an honest message")
        taken.append((time.perf_counter() - began) * 1_000)
    return sorted(taken)[count * 99 // 100]


def _attack(target: Target, begun: Any) -> None:
    """Attack until this process is killed."""
    while True:
        for attack in ATTACKS.values():
            begun.set()
            with suppress(Exception):
                attack(target)
