"""What is asked of users, roles and the mode of access, and what becomes of it when committed.

The leader looks first whether an entry could be applied; replicas look again when they apply it,
for another one may have come between. A change is answered only once the shards enforce it:
`committed` changes wait for the component that asks the shards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from weir.access.credentials import ScramVerifier, check_verifier
from weir.broker.api.events import AccessNarrowed, Findings
from weir.broker.metadata.security.access import Access, User
from weir.broker.metadata.security.rules import ADMIN, Rule, make_rule, resource_name, topic_name
from weir.broker.metadata.security.vault import FALSE_SALTS, NO_VAULT, Vault, purpose_of_verifier
from weir.broker.records.security import (
    AccessFounded,
    AccessModeSet,
    AccessRecord,
    RoleChanged,
    RoleDeleted,
    RuleRow,
    StoredVerifier,
    UserCreated,
    UserPasswordSet,
    UserRevoked,
    UserRolesChanged,
)
from weir.broker.replica.requests import Proposals
from weir.broker.runtime.outbox import Caller
from weir.errors import BadRequest, LevelTooLow, Refused, Unavailable, UnknownUser
from weir.model.limits import FORMAT_LEVEL_ACCESS, KIB
from weir.model.topic import check_name, split_name
from weir.protocol.client import access as wire
from weir.protocol.client.messages import Reply

#: Of random bytes that false salts are made of.
_SECRET_BYTES = 32
#: A list of users and roles is cut where it gets about so long.
_PAGE_BYTES = 512 * KIB
#: What a row takes beside its names, about.
_ROW_BYTES = 64


class Committed(NamedTuple):
    """A change that is committed: who asked for it, and the access version that it has.
    `is_bounded` if shards that do not hear of it end what they let in, for they take the set for
    closed.
    """

    caller: Caller
    version: int
    is_bounded: bool


class AccessCatalog(Protocol):
    """What is known of access, and of what is written."""

    access: Access

    @property
    def level(self) -> int:
        """The format level that is written."""


class AccessLog(Protocol):
    """The registry's log."""

    def propose(self, record: AccessRecord, /) -> int:
        """Propose an entry; return its index. Raises `Unavailable` where it is not led here."""


class Replies(Protocol):
    """Where the registry's answers go."""

    def reply(self, caller: Caller, reply: Reply) -> None:
        """Answer a request."""

    def refuse(self, caller: Caller, error: Refused) -> None:
        """Answer with a refusal."""


class AccessRequests:
    """Changes users, roles and rules by entries, and describes them."""

    __slots__ = ("_catalog", "_findings", "_log", "_narrowed_at", "_outbox", "_proposals",
                 "_random", "_vault", "committed")  # fmt: skip

    def __init__(
        self,
        catalog: AccessCatalog,
        outbox: Replies,
        log: AccessLog,
        findings: Findings,
        random: Callable[[int], bytes] | None,
        vault: Vault = NO_VAULT,
    ) -> None:
        """Change `catalog` by entries of `log`; `findings` get to know when something was taken
        away. `random` gives so many bytes that nobody can guess; without it there can be no users.
        `vault` wraps what is secret before it is proposed.
        """
        self._vault = vault
        self._catalog = catalog
        self._log = log
        self._findings = findings
        #: The access version at which live sessions were to be looked at last.
        self._narrowed_at = 0
        self._outbox = outbox
        self._random = random
        self._proposals: Proposals[AccessRecord, Caller] = Proposals(log)
        #: Changes of which the shards are to be asked whether they keep to them.
        self.committed: deque[Committed] = deque()

    def lose(self, error: Refused) -> None:
        """This node no longer leads: refuse callers that wait for a change."""
        for caller in self._proposals.lose():
            self._outbox.refuse(caller, error)

    def change_user(self, caller: Caller, request: wire.ChangeUser) -> None:
        """Propose what is asked. Raises `LevelTooLow`, `BadName`, `UserExists`, `UnknownUser`,
        `UnknownRole`, `TooLarge` or `BadRequest`.

        What is so already is answered like what becomes so: an answer may have been lost.
        """
        access, name = self._catalog.access, user_name(request.user)
        known = access.user(name)
        if request.action in ("create", "password") and request.verifier is None:
            raise BadRequest("give the verifier of a password: no user is without one")
        if request.verifier is not None:
            check_verifier(request.verifier)
        match request.action, request.verifier:
            case "create", verifier if verifier is not None:
                if known and self._is_same(known, verifier) and known.roles == request.added:
                    self.is_so(caller)
                    return
                self._found()
                stored = self._stored(name, verifier)
                record: AccessRecord = UserCreated(name, stored, request.added)
            case "password", verifier if verifier is not None:
                record = UserPasswordSet(name, self._stored(name, verifier))
            case "roles", _:
                record = UserRolesChanged(name, request.added, request.removed)
            case _:
                if known is None:
                    self._check_level()
                    self.is_so(caller)
                    return
                record = UserRevoked(name)
        self.propose(record, caller)

    def _stored(self, user: str, verifier: ScramVerifier) -> StoredVerifier:
        """Return a verifier as it is stored: wrapped, if this node has a key file. Raises
        `BadRequest` where the library is missing that wraps.
        """
        if not self._vault.wraps:
            return verifier
        return self._vault.seal(msgspec.msgpack.encode(verifier), purpose_of_verifier(user))

    def _is_same(self, user: User, verifier: ScramVerifier) -> bool:
        """Return whether a user has this verifier. Raises `Unavailable` if it cannot be opened."""
        return self._catalog.access.open_verifier(user, self._vault) == verifier

    def change_role(self, caller: Caller, request: wire.ChangeRole) -> None:
        """Propose what is asked. Raises as `change_user` does."""
        role = check_name(request.role, "role")
        if not request.delete:
            added, removed = _rows(request.added), _rows(request.removed)
            self.propose(RoleChanged(role, added, removed), caller)
        elif role != ADMIN and not self._catalog.access.has_role(role):
            self._check_level()
            self.is_so(caller)
        else:
            self.propose(RoleDeleted(role), caller)

    def set_mode(self, caller: Caller, request: wire.SetAccessMode) -> None:
        """Propose a mode. Raises `LevelTooLow`, or `BadRequest` if nobody could open it again."""
        self.propose(AccessModeSet(request.mode), caller)

    def describe(self, caller: Caller, request: wire.DescribeAccess) -> None:
        """Answer with the mode and with users and roles, as many as one reply holds."""
        access, size = self._catalog.access, 0
        users: list[wire.UserRow] = []
        roles: list[wire.RoleRow] = []
        for user in access.users(request.after_user):
            size += _ROW_BYTES + len(user.name) + sum(map(len, user.roles))
            if size > _PAGE_BYTES and users:
                break
            users.append(wire.UserRow(user.name, user.number, user.roles))
        else:
            for role, rules in access.roles(request.after_role):
                size += sum(_ROW_BYTES + len(rule.name) for rule in rules) + len(role)
                if size > _PAGE_BYTES and (users or roles):
                    break
                roles.append(wire.RoleRow(role, tuple(map(row_of, rules))))
            else:
                reply = wire.AccessInfo(access.mode, access.version, users, roles)
                self._outbox.reply(caller, reply)
                return
        self._outbox.reply(
            caller, wire.AccessInfo(access.mode, access.version, users, roles, more=True)
        )

    def explain(self, caller: Caller, request: wire.ExplainAccess) -> None:
        """Say whether a user may do something, and why. Raises `UnknownUser` or `BadName`."""
        access, user = self._catalog.access, self.known(request.user)
        rule = make_rule([request.verb], request.kind, request.name, False)
        verb, kind = request.verb, request.kind
        full = resource_name(kind, request.name)
        topic = full.partition(":")[0]
        found = access.authorize(user.principal, verb, rule.kind, full)  # type: ignore[arg-type]
        if found is None and kind == "cluster":  # a right to the topic is one to its clusters
            found = access.authorize(user.principal, verb, "topic", topic)  # type: ignore[arg-type]
        if found is None:
            self._outbox.reply(caller, wire.AccessExplained(False))
        else:
            explained = wire.AccessExplained(True, found.role, row_of(found.rule))
            self._outbox.reply(caller, explained)

    def known(self, user: str) -> User:
        """Return a user. Raises `UnknownUser` or `BadName`."""
        name = user_name(user)
        found = self._catalog.access.user(name)
        if found is None:
            raise UnknownUser(f"no user {name}: `weir user list` names those that are there")
        return found

    def apply(self, index: int, record: AccessRecord) -> None:
        """Apply a committed record, or refuse it where it cannot be applied any more."""
        caller, access = self._proposals.applied(index), self._catalog.access
        try:
            access.apply(record)
        except Refused as error:
            if caller is not None:
                self._outbox.refuse(caller, error)
            return
        if caller is not None:
            is_bounded = access.mode == "closed" and not isinstance(record, AccessModeSet)
            self.committed.append(Committed(caller, access.version, is_bounded))

    def look_for_losses(self) -> None:
        """Let live sessions be looked at if something was taken away since the last time."""
        if (narrowed_at := self._catalog.access.narrowed_at) != self._narrowed_at:
            self._narrowed_at = narrowed_at
            self._findings.append(AccessNarrowed())

    def is_so(self, caller: Caller) -> None:
        """Answer what is so already like what becomes so."""
        access = self._catalog.access
        self.committed.append(Committed(caller, access.version, access.mode == "closed"))

    def _found(self) -> None:
        """Draw the secret of false salts, before there is a user."""
        self._check_level()
        if self._random is None:
            raise Unavailable("this node draws no random bytes: it cannot have users")
        if not self._catalog.access.secret:
            secret = self._random(_SECRET_BYTES)
            if self._vault.wraps:
                secret = self._vault.seal(secret, FALSE_SALTS)
            self._log.propose(AccessFounded(secret))

    def propose(self, record: AccessRecord, caller: Caller) -> None:
        """Propose a record, unless it could not be applied. Raises `Refused`."""
        self._check_level()
        self._catalog.access.check(record)
        self._proposals.propose(record, caller)

    def _check_level(self) -> None:
        level = self._catalog.level
        if level < FORMAT_LEVEL_ACCESS:
            raise LevelTooLow(
                f"this set writes format level {level}, and users and roles need "
                f"{FORMAT_LEVEL_ACCESS}: once all nodes run this release, raise it by `weir node "
                "raise-level`",
                level,
            )


def user_name(name: str) -> str:
    """Return the full name of a user: `NAMESPACE/NAME`. Raises `BadName`."""
    return topic_name(*split_name(name))


def row_of(rule: Rule) -> wire.RuleRow:
    """Return a rule as the wire has it."""
    return wire.RuleRow(rule.verbs, rule.kind, rule.name, rule.is_prefix)


def _rows(rows: tuple[wire.RuleRow, ...]) -> tuple[RuleRow, ...]:
    rules = [make_rule(row.verbs, row.kind, row.name, row.prefix) for row in rows]
    return tuple((rule.verbs, rule.kind, rule.name, rule.is_prefix) for rule in rules)
