"""How failed logins slow down those that come after them: from the same address, or for the same
user.

Nobody is locked out: an attempt waits. Each failure beyond the first few doubles the wait up to a
limit, and waits of attempts that come together add up, so guessing in parallel is no faster. A
minute without a failure forgets all.

For a user, each address has a line of its own: an attempt waits as long as the failures of the user
demand, but only behind attempts from its own address. So a guesser fills no line but its own, and
the user itself waits for at most `WAIT_SECONDS_MAX`. Guesses from many addresses are slowed down
for each of them.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

#: So many failures slow nobody: people mistype.
FREE_FAILURES = 5
WAIT_SECONDS = 0.1
WAIT_SECONDS_MAX = 2.0
#: A visitor that would wait for longer is refused at once.
LINE_SECONDS_MAX = 10.0
FORGET_SECONDS = 60.0
#: Keys that are remembered; the one that failed longest ago makes room.
ROWS_MAX = 4_096
_SUBNET_BITS = 64


class _Row:
    __slots__ = ("at", "due", "failures")

    def __init__(self) -> None:
        self.failures = 0
        #: When it failed last, and when the last attempt in line goes on, in seconds.
        self.at = self.due = 0.0


class Failures:
    """Failed attempts by key."""

    __slots__ = ("_rows", "all")

    def __init__(self) -> None:
        """Begin without any."""
        self._rows: OrderedDict[str, _Row] = OrderedDict()
        #: How many there were.
        self.all = 0

    def __len__(self) -> int:
        return len(self._rows)

    def failed(self, key: str, now: float) -> None:
        """An attempt failed at `now`, in seconds; an empty key is nobody's."""
        self.all += 1
        if not key:
            return
        row = self._known(key, now) or self._add(key)
        row.failures += 1
        row.at = now
        self._rows.move_to_end(key)

    def wait(self, key: str, now: float) -> float:
        """Return how long each attempt has to wait by the failures of a key, in seconds."""
        row = self._known(key, now)
        if row is None or row.failures <= FREE_FAILURES:
            return 0.0
        doublings = min(row.failures - FREE_FAILURES - 1, 16)
        return float(min(WAIT_SECONDS * 2**doublings, WAIT_SECONDS_MAX))

    def seconds(self, key: str, now: float, least: float = 0.0) -> float | None:
        """Return how long an attempt has to wait, `least` or more behind the one before it, and let
        it stand in line; None if the line is too long for it.
        """
        wait = max(self.wait(key, now), least)
        if not wait or not key:
            return wait
        row = self._known(key, now) or self._add(key)
        due = max(row.due, now) + wait
        if due - now > LINE_SECONDS_MAX:
            return None
        row.due = due
        return due - now

    def _add(self, key: str) -> _Row:
        row = self._rows[key] = _Row()
        if len(self._rows) > ROWS_MAX:
            self._rows.popitem(last=False)
        return row

    def _known(self, key: str, now: float) -> _Row | None:
        row = self._rows.get(key)
        if row is not None and now - max(row.at, row.due) > FORGET_SECONDS:
            del self._rows[key]
            return None
        return row


def origin_of(address: str) -> str:
    """Return whose failures an address shares: an IPv4 address its own, an IPv6 address those of
    its /64, which one host has for itself; empty for no address.
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((found, _SUBNET_BITS), strict=False))
