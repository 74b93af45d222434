"""Authorized: nobody is served what was taken from them, once the administrator has the answer.

What users do is recorded with the moment at which it began. A loss counts from the answer to the
administrator that named no shard as not reached; one whose answer named some counts from the time
by which it said that these stop, or from `settled`, long after the last fault. What was given back
is not judged from the moment at which that began.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Account:
    """A user by one password, or nobody (""), with one right; times are virtual seconds."""

    name: str
    password: str
    #: What it does: write, read, consume, list or scatter.
    work: str
    #: Whether it never had any right.
    is_stranger: bool = False
    #: Whether nothing of it is ever taken away, so that nothing may be refused to it.
    is_kept: bool = False
    #: From when on it may do nothing; and from when on it may again.
    lost_at: float | None = None
    regained_at: float | None = None
    #: Whether it was taken away, and some shards did not say that they know; and by when these
    #: stop at the latest, if that was said.
    is_unsure: bool = False
    stops_by: float | None = None
    #: How often it was served, and when it was last.
    served: int = 0
    last: float = 0.0

    @property
    def is_right(self) -> bool:
        """Whether it may do what it does, as far as the last change says."""
        return not self.is_stranger and not self.is_lost

    @property
    def is_lost(self) -> bool:
        """Whether something was taken away and not given back."""
        return (self.lost_at is not None or self.is_unsure) and self.regained_at is None


@dataclass(slots=True)
class AccessHistory:
    """What accounts were served, and what was refused to those who may not be refused."""

    accounts: list[Account] = field(default_factory=list)
    found: list[tuple[str, str]] = field(default_factory=list)
    #: How many operations were served, and how many losses were answered in full.
    served: int = 0
    losses: int = 0
    #: How many losses were answered with the time by which shards stop that were not reached.
    bounded: int = 0

    @property
    def is_tested(self) -> bool:
        """Whether something was taken away of which somebody could have been served too much."""
        return self.losses + self.bounded > 0

    def serve(self, account: Account, what: str, began: float, now: float) -> None:
        """An account was served now something that began, or was published, at `began`."""
        self.served += 1
        account.served += 1
        account.last = max(account.last, began)
        regained = account.regained_at
        lost_at = account.lost_at if account.lost_at is not None else account.stops_by
        if lost_at is None or began <= lost_at:
            return
        if regained is not None and now >= regained:
            return
        who = account.name or "nobody"
        self.found.append((
            "Authorized",
            f"{who} did {what} of {began:.6f} at {now:.6f}, and lost that at {lost_at:.6f}",
        ))  # fmt: skip

    def refuse(self, account: Account, error: Exception, now: float) -> None:
        """An account was told that it may not do what it does."""
        if not account.is_kept:
            return
        self.found.append(("Authorized", f"{account.name} was refused at {now:.6f}: {error}"))

    def lose(
        self, account: Account, now: float, reached_all: bool, stops_by: float | None = None
    ) -> None:
        """Something was taken from an account, and the answer is here; it may say by when shards
        stop that were not reached.
        """
        if reached_all:
            account.lost_at = now
            self.losses += 1
        else:
            account.is_unsure, account.stops_by = True, stops_by
            self.bounded += stops_by is not None

    def settle(self, now: float) -> None:
        """All shards have long heard of everything: what nobody was sure of is lost by now."""
        for account in self.accounts:
            if account.is_lost and account.lost_at is None:
                account.lost_at = now

    def unserved(self, since: float) -> Iterator[tuple[str, str]]:
        """Yield accounts that may do what they do and were not served any more."""
        for account in self.accounts:
            if account.is_right and account.last < since:
                yield "Live", f"{account.name}, who may {account.work}, was not served in the end"
