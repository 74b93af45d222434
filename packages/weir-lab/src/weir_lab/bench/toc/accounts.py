"""What the processes of a run have written down, compared: one order, whole, to those it was for.

The guarantees have the numbers of docs/PACKETS.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from weir_toc.endpoint.events import Service

BEST_EFFORT, RELIABLE = Service.BEST_EFFORT.value, Service.RELIABLE.value
#: A scattering: its service, its stamp and who sent it.
Key = tuple[int, int, int]
Line = list[Any]


@dataclass(slots=True)
class Account:
    """What one process did."""

    process: int
    #: What it sent: the CRC of each part by its receiver.
    sent: dict[Key, dict[int, int]] = field(default_factory=dict)
    #: Receivers that it was told miss a scattering.
    lost: dict[Key, set[int]] = field(default_factory=dict)
    #: What it was given, in this order for each service.
    got: dict[Key, int] = field(default_factory=dict)
    messages: int = 0
    #: What is wrong with it alone.
    violations: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, process: int, lines: Iterable[Line]) -> Account:
        """Return the account of a log; order and causality are checked as it is read."""
        made = cls(process)
        last = {BEST_EFFORT: (-1, -1), RELIABLE: (-1, -1)}
        highest = 0
        called: dict[int, int] = {}
        for word, *rest in lines:
            if word == "call":
                called[rest[0]] = highest
            elif word == "sent":
                service, number, stamp, crcs = rest
                if stamp <= called.pop(number):
                    made.violations.append(f"3: {process} stamped {stamp} below what it had")
                made.sent[service, stamp, process] = {int(to): crc for to, crc in crcs.items()}
            elif word == "lost":
                service, stamp, to, _ = rest
                made.lost.setdefault((service, stamp, process), set()).add(to)
            elif word == "got":
                service, stamp, source, crc = rest
                if (stamp, source) <= last[service]:
                    made.violations.append(
                        f"2: {process} was given {(stamp, source)} behind {last[service]}"
                    )
                last[service] = stamp, source
                highest = max(highest, stamp)
                made.got[service, stamp, source] = crc
                made.messages += 1
        return made


def lines_of(path: str) -> Iterator[Line]:
    """Yield the whole lines of a log."""
    with open(path, encoding="utf-8") as log:
        for line in log:
            if line.endswith("\n"):
                yield json.loads(line)


def violations(accounts: Mapping[int, Account], removed: Set[int] = frozenset()) -> list[str]:
    """Return all guarantees that are broken, in sentences. All processes must have settled.

    What those that were `removed` miss, or have sent last, is promised to nobody.
    """
    found = [one for account in accounts.values() for one in account.violations]
    here = {process: one for process, one in accounts.items() if process not in removed}
    for account in accounts.values():
        found += _integrity(account, accounts, removed)
    for account in here.values():
        found += _validity(account, here)
    return found


def _integrity(
    account: Account, accounts: Mapping[int, Account], removed: Set[int]
) -> Iterator[str]:
    """4 and 5: what was given was sent, with this stamp and payload, to this process.

    Since pairs of stamp and sender rise at each process, this makes the order one, too.
    """
    for key, crc in account.got.items():
        _, stamp, source = key
        sender = accounts.get(source)
        parts = sender.sent.get(key) if sender is not None else None
        if parts is None and source in removed:
            continue  # it was excluded before it could write down that this had left
        if parts is None:
            yield f"4: {account.process} was given {stamp} of {source}, which was not sent"
        elif parts.get(account.process) != crc:
            yield f"4: {account.process} was given another payload at {stamp} of {source}"


def _validity(account: Account, accounts: Mapping[int, Account]) -> Iterator[str]:
    """All parts arrive, or the sender is told; a reliable scattering arrives at all, or at none."""
    for key, parts in account.sent.items():
        service, stamp, source = key
        told = account.lost.get(key, set())
        here = parts.keys() & accounts.keys()
        missing = {to for to in here if key not in accounts[to].got}
        if service == BEST_EFFORT and missing - told:
            yield f"{source} was not told that {sorted(missing - told)} miss {stamp}"
        elif service == RELIABLE and told and len(missing) < len(here):
            yield f"7: {source} was told that {stamp} failed, and it was delivered"
        elif service == RELIABLE and not told and missing:
            yield f"{sorted(missing)} did not get the reliable {stamp} of {source}"
