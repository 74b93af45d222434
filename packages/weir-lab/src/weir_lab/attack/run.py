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

import msgspec

from weir.client.sync.client import Client
from weir.errors import WeirError
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
    """Start a node on the copy, without its key file and certificates; attack that."""
    for lock in folder.rglob("lock"):
        lock.unlink()
    try:
        with running_node(folder, shards=1) as node:
            stolen = msgspec.structs.replace(
                target, host=node.host, port=node.port, folder=str(folder), bundle=""
            )
            achieved = []
            for name in ("list topics", "make an administrator", "open the set"):
                if strangers.ATTACKS[name](stolen):
                    achieved.append(name)
            for what, mark in target.marks.items():
                with suppress(WeirError, UnicodeError, OSError), stolen.connect("root", mark.hex()):
                    achieved.append(f"log in by {what}")
            return achieved
    except NodeFailed:
        return []  # without its key file it does not serve at all


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
