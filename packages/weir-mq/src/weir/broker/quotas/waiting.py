"""Peers that wait for quotas: the line that they wait in, their turns, and the memory that their
requests take meanwhile.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import msgspec

from weir.broker.quotas.accounts import REQUESTS, Account
from weir.broker.runtime.budget import Budget
from weir.errors import Overloaded
from weir.model.limits import RETRY_AFTER_MS

#: What waits for the rates of one entity may be this part of the byte budget, and what waits for
#: rates at all this one; entities that have less than an even part of that may go on up to the
#: last one. All are far from three quarters, above which all peers are not read from.
SHARE_OF_ENTITY = 8
SHARE_OF_ALL = 4
SHARE_AT_MOST = 2


class Held(msgspec.Struct):
    """A peer that is not read from: for whose sake, at which place in the line, since when, and how
    much it brought last; when it was told so; and whether it brought what is not served yet.
    """

    accounts: tuple[Account, ...]
    place: int
    since_ms: int
    brought: int
    told_ms: int
    #: From when on its waiting is not counted yet, in the metrics.
    uncounted_ms: int
    is_parked: bool = False
    #: Whether it waits for what its last turn left.
    was_served: bool = False
    #: How it is to be refused, once no replies are on their way that this would overtake.
    refusal: Overloaded | None = None
    #: The bytes that are parked, and the accounts whose share of memory they take.
    parked_bytes: int = 0
    parked_for: tuple[Account, ...] = ()


class Turn(msgspec.Struct):
    """A peer whose parked requests are served now. The first one is served if nothing is overdrawn
    then, and more as long as what is promised to the others whose turn it is stays untouched. A
    peer that got nothing waits on at its old place; one that was served goes behind the others.
    """

    held: Held
    #: So many bytes and one request are promised to it of each of these.
    accounts: tuple[Account, ...]
    size: int
    is_served: bool = False


class ParkedBytes:
    """How much memory the requests take that wait for rates, all together and by account."""

    __slots__ = ("_budget", "_entities", "_used")

    def __init__(self, budget: Budget) -> None:
        """Let shares of `budget` be taken."""
        self._budget = budget
        self._used = 0
        #: How many accounts have anything parked.
        self._entities = 0

    def take(self, held: Held, size: int) -> None:
        """A peer that is held has so many bytes more, or less, parked."""
        held.parked_bytes += size
        self._used += size
        for account in held.parked_for:
            before = account.parked_bytes > 0
            account.parked_bytes += size
            self._entities += (account.parked_bytes > 0) - before

    def is_full(self, short: Sequence[Account]) -> Overloaded | None:
        """Return the refusal if no more may wait for these accounts. Where the share of all is
        full, only those are refused that have an even part of it or more: two cannot take a third
        one's.
        """
        limit = self._budget.limit
        for one in short:
            if one.parked_bytes >= limit // SHARE_OF_ENTITY:
                text = f"requests that wait for the quota of {one.entity} fill its share of memory"
                return Overloaded(f"{text}: try again shortly", RETRY_AFTER_MS)
        entities = self._entities + sum(one.parked_bytes == 0 for one in short)
        even = limit // SHARE_OF_ALL // max(entities, 1)
        if self._used >= limit // SHARE_AT_MOST or (
            self._used >= limit // SHARE_OF_ALL and any(one.parked_bytes >= even for one in short)
        ):
            text = "requests that wait for quotas fill their share of memory"
            return Overloaded(f"{text}: try again shortly", RETRY_AFTER_MS)
        return None


class Turns:
    """The places in the line, and whose turn it is."""

    __slots__ = ("_by_session", "_places")

    def __init__(self) -> None:
        """Begin with nobody."""
        self._by_session: dict[int, Turn] = {}
        self._places = itertools.count()

    def next_place(self) -> int:
        """Return the place behind all others."""
        return next(self._places)

    def begin(self, let_go: Sequence[tuple[int, Held]]) -> Iterator[int]:
        """Promise each of these peers what it brought, and yield them in the order of their turns,
        which is that of the line: the first request of a turn may take what the others were
        promised, and the first in line must not find it gone. Only if it was served in its last
        turn is it the last one of this pass, and gets what the others leave.
        """
        first, others = let_go[:1], let_go[1:]
        is_last = bool(first) and first[0][1].was_served
        for number, held in (*others, *first) if is_last else let_go:
            # What is refused is promised nothing.
            accounts = () if held.refusal is not None else held.accounts
            for account in accounts:
                account.promise(held.brought, 1)
            self._by_session[number] = Turn(held, accounts, held.brought)
            yield number

    def of(self, number: int) -> Turn | None:
        """Return the turn of a peer, if it has one now."""
        return self._by_session.get(number)

    def end(self, number: int) -> None:
        """A peer is promised nothing any more."""
        if (turn := self._by_session.pop(number, None)) is not None:
            for account in turn.accounts:
                account.promise(-turn.size, -1)


def has_room(account: Account, expected: int, requests: int) -> bool:
    """Return whether no rate of an account is overdrawn, and some is left behind the bytes and the
    requests that are expected of others.
    """
    for rate, bucket in enumerate(account.buckets):
        if bucket is not None:
            left = bucket.level - (requests if rate == REQUESTS else expected)
            if left < 0:
                return False
    return True


def waited_too_long(short: Account) -> Overloaded:
    """Return the refusal of what waited for the rates of an account for as long as a peer waits."""
    text = f"other connections use the quota of {short.entity}, too, or it is too low for the load"
    return Overloaded(f"{text}: try again shortly", RETRY_AFTER_MS)


def has_left(account: Account, turn: Turn | None, size: int) -> bool:
    """Return whether a request of `size` bytes leaves what is promised to others whose turn it is
    now. To the first request of a turn that does not matter: it was let go for that.
    """
    if turn is None or account not in turn.accounts:
        return account.leaves_promised(size, 0, 0)
    return not turn.is_served or account.leaves_promised(size, turn.size, 1)
