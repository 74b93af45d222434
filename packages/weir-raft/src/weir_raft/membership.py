"""Who belongs to a group: majorities, configurations, and the changes from one to the next. (§4)

A change of voters goes through a *joint* configuration, in which a majority of the old voters and a
majority of the new ones must agree, each for itself (§4.3). A configuration is in force as soon as
it is in a node's log, committed or not.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import repeat

from weir_raft.errors import InvalidChange, InvalidConfig, StorageError

#: Terms of one lineage: however far ahead a peer may say that its term is, at each message that is
#: believed, a lineage does not end before an operator forces its members.
_LINEAGE_TERMS = 1 << 48
#: A term must fit its field, with some to come.
LINEAGE_MAX = (1 << 14) - 1


def lineage_of(term: int) -> int:
    """Return the lineage that a term is of: how often its group was forced, at most."""
    return term // _LINEAGE_TERMS


def first_term(lineage: int) -> int:
    """Return the term in which nobody leads, below all others of a lineage."""
    return lineage * _LINEAGE_TERMS


class VoteResult(Enum):
    """How an election stands."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


def committed_index(match: Collection[int]) -> int:
    """The highest index that a majority of voters hold durably, given one match index a voter.

    ValueError without voters. (Ongaro's dissertation, Figure 3.1, "Rules for Servers".)
    """
    if not match:
        raise ValueError("a configuration has at least one voter")
    # In falling order, the value at place n // 2 is reached by n // 2 + 1 voters: a majority.
    return sorted(match, reverse=True)[len(match) // 2]


def vote_result(voters: Collection[int], votes: Mapping[int, bool]) -> VoteResult:
    """How an election among `voters` stands; votes of anyone else do not count. (§3.4)"""
    majority = len(voters) // 2 + 1
    granted = sum(votes.get(voter, False) for voter in voters)
    if granted >= majority:
        return VoteResult.WON
    silent = sum(voter not in votes for voter in voters)
    return VoteResult.PENDING if granted + silent >= majority else VoteResult.LOST


_HEAD = struct.Struct("<BxHHH")  # version, then how many voters, outgoing voters and learners
_VERSION = 1
_GRAVITY = (VoteResult.WON, VoteResult.PENDING, VoteResult.LOST)


@dataclass(frozen=True, slots=True)
class Change:
    """What shall be different in the next configuration. Naming a member again moves it."""

    add_voters: tuple[int, ...] = ()
    add_learners: tuple[int, ...] = ()
    remove: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Configuration:
    """The members of a group. `outgoing` is empty unless a change of voters is under way."""

    #: Who counts, and goes on counting once a change is complete.
    voters: tuple[int, ...]
    #: Who counted before the change under way, in a majority of their own.
    outgoing: tuple[int, ...] = ()
    #: Who receives the log; one that is in `outgoing` too counts there until the change is done.
    learners: tuple[int, ...] = ()

    @property
    def joint(self) -> bool:
        """Whether a change of voters is under way."""
        return bool(self.outgoing)

    @property
    def members(self) -> tuple[int, ...]:
        """Everybody who receives the log, each once."""
        return tuple(dict.fromkeys((*self.voters, *self.outgoing, *self.learners)))

    def counts(self, member: int) -> bool:
        """Whether `member` votes and is counted, in either half."""
        return member in self.voters or member in self.outgoing

    def vote_result(self, votes: Mapping[int, bool]) -> VoteResult:
        """How an election stands: a joint one is won in both halves. (§4.3)"""
        result = vote_result(self.voters, votes)
        if not self.outgoing:
            return result
        return max(result, vote_result(self.outgoing, votes), key=_GRAVITY.index)

    def committed(self, match: Mapping[int, int]) -> int:
        """The highest index that a majority, of both halves if joint, holds durably."""
        # As `committed_index` says: each acknowledgement comes by here.
        reached = sorted(map(match.get, self.voters, repeat(0)), reverse=True)[
            len(self.voters) // 2
        ]
        if not self.outgoing:
            return reached
        return min(reached, committed_index([*map(match.get, self.outgoing, repeat(0))]))

    def validate(self) -> None:
        """Raise InvalidConfig if this is no configuration at all."""
        if any(member <= 0 for member in (*self.voters, *self.outgoing, *self.learners)):
            raise InvalidConfig("ids must be positive integers: 0 means nobody")
        if len(set(self.outgoing)) != len(self.outgoing):
            raise InvalidConfig(f"an id is named twice in outgoing voters {self.outgoing}")
        named = (*self.voters, *self.learners)
        if len(set(named)) != len(named):
            raise InvalidConfig(f"an id is named twice in voters {self.voters} and {self.learners}")

    def changed(self, change: Change) -> Configuration:
        """The next configuration: a joint one if voters change. InvalidChange if it cannot be."""
        if self.joint:
            raise InvalidChange("a joint configuration only leaves for its own voters")
        named = (*change.add_voters, *change.add_learners, *change.remove)
        if not named or len(set(named)) != len(named) or min(named) <= 0:
            raise InvalidChange(f"name each member to change once, by a positive id: {named}")
        moved = set(named)
        voters = (*(v for v in self.voters if v not in moved), *change.add_voters)
        learners = (*(v for v in self.learners if v not in moved), *change.add_learners)
        if not voters:
            raise InvalidChange("a group without voters could never decide anything again")
        if set(voters) == set(self.voters):
            return Configuration(self.voters, (), learners)
        return Configuration(voters, self.voters, learners)

    def left(self) -> Configuration:
        """What a joint configuration becomes once it is committed."""
        return Configuration(self.voters, (), self.learners)

    def pack(self) -> bytes:
        """As the data of a CONFIGURATION entry: u8 version, u8 0, three u16 counts, u64 ids."""
        ids = (*self.voters, *self.outgoing, *self.learners)
        head = _HEAD.pack(_VERSION, len(self.voters), len(self.outgoing), len(self.learners))
        return head + struct.pack(f"<{len(ids)}Q", *ids)

    @classmethod
    def unpack(cls, data: bytes) -> Configuration:
        """Read what pack() gave; InvalidConfig if it is not that."""
        if len(data) < _HEAD.size or data[0] != _VERSION:
            raise InvalidConfig(
                "a configuration entry is not of version 1: start the release that wrote it"
            )
        _, voters, outgoing, learners = _HEAD.unpack_from(data)
        count = voters + outgoing + learners
        if len(data) != _HEAD.size + 8 * count:
            raise InvalidConfig(f"a configuration entry of {count} ids cannot be {len(data)} bytes")
        ids = struct.unpack_from(f"<{count}Q", data, _HEAD.size)
        configuration = cls(ids[:voters], ids[voters : voters + outgoing], ids[voters + outgoing :])
        configuration.validate()
        return configuration


class History:
    """The configurations in a node's log, oldest first; the newest counts. (§4.1)

    One that was forced counts instead until the log has one of its lineage.
    """

    __slots__ = ("_forced", "_known", "_lineages", "newest")

    def __init__(
        self,
        index: int,
        first: Configuration,
        later: Iterable[tuple[int, bytes]] = (),
        lineage_at: Callable[[int], int] = lambda index: 0,
    ) -> None:
        """Begin with what is in force as of `index`; `later` are entries of the log above that.
        `lineage_at` tells of which lineage the entry at an index is.
        """
        self._forced: tuple[int, Configuration] | None = None
        self._known = [(index, first)]
        for index, data in later:
            if index <= self._known[-1][0]:
                raise StorageError(f"configuration {index} is not above {self._known[-1][0]}")
            self._known.append((index, Configuration.unpack(data)))
        self._lineages = [lineage_at(index) for index, _ in self._known]
        self.newest = self._known[-1][1]

    @property
    def index(self) -> int:
        """The index of the newest configuration's entry."""
        return self._known[-1][0]

    @property
    def lineage(self) -> int:
        """The lineage of the newest configuration's entry."""
        return self._lineages[-1]

    @property
    def is_forced(self) -> bool:
        """Whether what counts is not in the log: it was forced, and nobody led by it yet."""
        return self._forced is not None and self._lineages[-1] < self._forced[0]

    def force(self, lineage: int, configuration: Configuration) -> None:
        """Let this count until an entry of `lineage`, or a later one, puts another in force."""
        self._forced = lineage, configuration
        self._choose()

    def at(self, index: int) -> Configuration:
        """The configuration as of entry `index`, which must not be forgotten."""
        found = self._known[0][1]
        for since, configuration in self._known:
            if since <= index:
                found = configuration
        return found

    def append(self, index: int, configuration: Configuration, lineage: int = 0) -> None:
        """The log's entry `index`, of this lineage, puts `configuration` in force."""
        self._known.append((index, configuration))
        self._lineages.append(lineage)
        self._choose()

    def supersede(self, index: int) -> None:
        """The log's entries from `index` on are gone."""
        while len(self._known) > 1 and self._known[-1][0] >= index:
            self._known.pop()
            self._lineages.pop()
        self._choose()

    def restart(self, index: int, configuration: Configuration, lineage: int = 0) -> None:
        """A snapshot as of `index`, an entry of this lineage, replaces all that was known."""
        self._known = [(index, configuration)]
        self._lineages = [lineage]
        self._choose()

    def forget(self, index: int) -> None:
        """Nobody asks for what was in force below `index` any more."""
        while len(self._known) > 1 and self._known[1][0] <= index:
            del self._known[0], self._lineages[0]

    def _choose(self) -> None:
        self.newest = self._known[-1][1]
        if self.is_forced:
            assert self._forced is not None
            self.newest = self._forced[1]
