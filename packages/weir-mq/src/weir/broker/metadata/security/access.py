"""Users, roles, token issuers and the mode of access, as the registry decided; whose a token is.

Replicas apply what was decided, in order, so all of them have the same version after the same
entry. A version rises with each entry that changes what anybody may do, or ends a device, and
`narrowed_at` with those that may take something away from users: live sessions are looked at then,
and no sooner.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from weir.access.credentials import ScramVerifier
from weir.access.tokens import UNLIMITED, Claims, TokenLimits, verify_token
from weir.broker.metadata.security.issuers import NOBODY, TokenIssuers
from weir.broker.metadata.security.rules import (
    ADMIN,
    OF_TOPIC,
    Grant,
    RoleRules,
    Rule,
    authorize,
    authorize_any,
    read_rule,
)
from weir.broker.metadata.security.vault import FALSE_SALTS, Vault, purpose_of_verifier
from weir.broker.records.security import (
    SECRET_BYTES_MAX,
    AccessFounded,
    AccessModeSet,
    AccessRecord,
    RewrappedRow,
    RoleChanged,
    RoleDeleted,
    StoredVerifier,
    TokenKeysAdded,
    TokenKeysRemoved,
    TokenRenewed,
    UserCreated,
    UserPasswordSet,
    UserRevoked,
    UserRolesChanged,
    digest_of,
)
from weir.errors import (
    BadRequest,
    MissingLibrary,
    NotAuthenticated,
    Refused,
    TooLarge,
    Unavailable,
    UnknownRole,
    UnknownUser,
    UserExists,
)
from weir.model.limits import (
    ACCESS_BYTES_MAX,
    ROLE_RULES_MAX,
    ROLES_MAX,
    USER_ROLES_MAX,
    USERS_MAX,
)
from weir.protocol.client.declaration import Kind, Verb

#: What the principal of a user begins with; then come its name, `#`, and its number.
USER = "user:"
#: The user, which no user can be, and the principal of who was let in by a file of the data folder.
RESCUER = ":rescue"
#: What the principal of a hub of a fleet begins with; then comes the name of the fleet.
FLEET = "fleet:"
#: What the role of a fleet begins with; then comes the name of the fleet.
_FLEET_ROLE = "fleet."
#: What a user, a role or a rule takes beside its names, about.
_ROW_BYTES = 128
_NO_RULES = RoleRules()
#: The rights of a session that a file let in: to give somebody the role of an administrator, and to
#: promote the set of the node where no administrator can log in.
_OF_RESCUER = RoleRules([Rule(("administer", "promote"), "system", "", False)])
_NOT_LAST = (
    "this set is closed, and no user could open it again: give the role admin to another user first"
)


class User(msgspec.Struct, frozen=True):
    """A user: its number, which nobody else ever has, what its password is checked with, and the
    access version at which that was set.
    """

    name: str
    number: int
    verifier: StoredVerifier
    password_set: int
    roles: tuple[str, ...] = ()

    @property
    def principal(self) -> str:
        """What its sessions, and the producers that it opens, belong to."""
        return f"{USER}{self.name}#{self.number}"


class Access:
    """Access control in a catalog: the mode, users, roles and rules."""

    __slots__ = ("_roles", "_users", "issuers", "mode", "narrowed_at", "secret", "size", "version")

    def __init__(self) -> None:
        """Begin open, and without a user."""
        self._users: dict[str, User] = {}
        self._roles: dict[str, RoleRules] = {}
        #: Whose tokens are taken.
        self.issuers = TokenIssuers()
        self.mode = "open"
        #: Rises with each entry that is applied.
        self.version = 0
        #: The newest version that may have taken something away from somebody.
        self.narrowed_at = 0
        #: What false salts are made of; empty before there was a user.
        self.secret = b""
        #: The bytes of all names, about.
        self.size = 0

    def __bool__(self) -> bool:
        return self.version > 0

    # -- looking up --------------------------------------------------------------------------

    def user(self, name: str) -> User | None:
        """Return a user by its full name."""
        return self._users.get(name)

    def users(self, after: str = "") -> Iterator[User]:
        """Return users in the order of their names, those behind one name."""
        return (self._users[name] for name in sorted(self._users) if name > after)

    def roles(self, after: str = "") -> Iterator[tuple[str, RoleRules]]:
        """Return roles and their rules in the order of their names, those behind one name."""
        return ((name, self._roles[name]) for name in sorted(self._roles) if name > after)

    def has_role(self, role: str) -> bool:
        """Return whether there is a role of this name."""
        return role == ADMIN or role in self._roles

    def user_of(self, principal: str) -> User | None:
        """Return the user that a principal is; None if it is none, or is gone: one that has its
        name by now is another.
        """
        if not principal.startswith(USER):
            return None
        name, _, number = principal.removeprefix(USER).rpartition("#")
        user = self._users.get(name)
        return user if user is not None and str(user.number) == number else None

    def roles_of(self, principal: str) -> list[tuple[str, RoleRules]]:
        """Return the roles of a principal, with their rules. Hubs that proved to be of a fleet have
        one role, which is named after it.
        """
        if principal.startswith(FLEET):
            role = _FLEET_ROLE + principal.removeprefix(FLEET)
            return [(role, self._roles.get(role, _NO_RULES))]
        if principal == RESCUER:
            return [(RESCUER, _OF_RESCUER)]
        user = self.user_of(principal)
        return [] if user is None else self._with_rules(user)

    def authorize(
        self, principal: str, verb: Verb, kind: Kind, name: str, limits: TokenLimits = UNLIMITED
    ) -> Grant | None:
        """Return what allows a principal the verb with a resource; None if nothing does, or the
        token that it came by is limited to less.
        """
        if limits.topics is not None:
            topic = name.partition(OF_TOPIC)[0]
            if kind not in ("topic", "cluster") or topic not in limits.topics:
                return None
        return authorize(self._limited(principal, limits), verb, kind, name)

    def authorize_any(
        self, principal: str, verb: Verb, kind: Kind, topic: str = "",
        limits: TokenLimits = UNLIMITED,
    ) -> Grant | None:  # fmt: skip
        """Return what allows a principal the verb with any resource of a kind, or of a topic, as
        far as `limits` go.
        """
        roles = self._limited(principal, limits)
        if limits.topics is None:
            return authorize_any(roles, verb, kind, topic)
        if topic:
            return authorize_any(roles, verb, kind, topic) if topic in limits.topics else None
        if kind != "topic":
            return None
        found = (authorize(roles, verb, kind, one) for one in limits.topics)
        return next((one for one in found if one is not None), None)

    def _limited(self, principal: str, limits: TokenLimits) -> list[tuple[str, RoleRules]]:
        roles = self.roles_of(principal)
        if limits.roles is None:
            return roles
        return [one for one in roles if one[0] in limits.roles]

    def administrators(self) -> Iterator[User]:
        """Yield the administrators: users that may change users and rules."""
        for user in self.users():
            if authorize(self._with_rules(user), "administer", "system", ""):
                yield user

    def _with_rules(self, user: User) -> list[tuple[str, RoleRules]]:
        return [(role, self._roles.get(role, _NO_RULES)) for role in user.roles]

    # -- secrets at rest ---------------------------------------------------------------------

    def open_verifier(self, user: User, vault: Vault) -> ScramVerifier:
        """Return the verifier of a user. Raises `Unavailable` where the key file of this node does
        not open it.
        """
        stored = user.verifier
        if not isinstance(stored, bytes):
            return stored
        opened = vault.unseal(stored, purpose_of_verifier(user.name))
        try:
            return msgspec.msgpack.decode(opened, type=ScramVerifier)
        except msgspec.DecodeError:
            raise Unavailable(f"the verifier of user {user.name} is none: set a password") from None

    def open_secret(self, vault: Vault) -> bytes:
        """Return what false salts are made of. Raises `Unavailable` as `open_verifier`."""
        if len(self.secret) <= SECRET_BYTES_MAX:
            return self.secret
        return vault.unseal(self.secret, FALSE_SALTS)

    def rewrap(self, row: RewrappedRow) -> None:
        """A secret is wrapped by another key, if it is still that one: nobody's rights change."""
        if row.kind == "salts":
            if digest_of(self.secret) == row.before:
                self.secret = row.wrapped
            return
        if row.kind == "token":
            self.issuers.rewrap(row)
            return
        user = self._users.get(row.name)
        if user is not None and digest_of(user.verifier) == row.before:
            self._put(replace(user, verifier=row.wrapped))

    # -- applying ----------------------------------------------------------------------------

    def check(self, record: AccessRecord) -> None:
        """Raise `Refused` if a record could not be applied now, or would lock everybody out."""
        copy = Access()
        copy._take(self)
        copy.apply(record)

    def apply(self, record: AccessRecord) -> None:
        """Apply a record. Raises `Refused`, and changes nothing, where what it speaks of is not
        there any more, or there is too much of it.
        """
        if isinstance(record, TokenRenewed):
            self._apply(record)  # nobody's rights change, so what sessions were allowed stays so
            return
        before = Access()
        before._take(self)
        try:
            narrows = self._apply(record)
            self._check_room()
            if self.mode == "closed" and not any(self.administrators()):
                raise BadRequest(_NOT_LAST)
        except Refused:
            self._take(before)
            raise
        self.version += 1
        if narrows:
            self.narrowed_at = self.version

    def device_ended(self) -> None:
        """A device may come no more: shards that keep to this version let it in no more."""
        self.version += 1

    def _take(self, other: Access) -> None:
        self._users, self._roles = dict(other._users), dict(other._roles)
        self.issuers = other.issuers.copy()
        self.mode, self.version, self.narrowed_at = other.mode, other.version, other.narrowed_at
        self.secret, self.size = other.secret, other.size

    def _apply(self, record: AccessRecord) -> bool:
        """Apply a record; return whether it may take something away."""
        match record:
            case AccessFounded(secret):
                self.secret = self.secret or secret
                return False
            case UserCreated():
                self._create(record)
                return False
            case UserPasswordSet(name, verifier):
                user = self._known(name)
                self._put(replace(user, verifier=verifier, password_set=self.version + 1))
                return True
            case UserRolesChanged():
                return self._change_roles(record)
            case UserRevoked(name):
                user = self._known(name)
                self.size -= _size_of(user)
                del self._users[name]
                return True
            case RoleChanged():
                return self._change_rules(record)
            case RoleDeleted(role):
                self._delete_role(role)
                return True
            case AccessModeSet(mode):
                order = ("open", "watch", "closed")
                narrows = order.index(mode) > order.index(self.mode)
                self.mode = mode
                return narrows
            case TokenKeysAdded():
                return self.issuers.add(record, self.version + 1)
            case TokenRenewed():
                self.issuers.renew(record)
                return False
            case TokenKeysRemoved(issuer, key):
                self.issuers.remove(issuer, key)
                return True

    def _create(self, record: UserCreated) -> None:
        if record.user in self._users:
            raise UserExists(f"user {record.user} is there already: revoke it first, or set its "
                             "password")  # fmt: skip
        self._check_roles(record.roles)
        version = self.version + 1
        self._put(User(record.user, version, record.verifier, version, record.roles))

    def _change_roles(self, record: UserRolesChanged) -> bool:
        user = self._known(record.user)
        self._check_roles(record.added)
        kept = [role for role in user.roles if role not in record.removed]
        roles = tuple(dict.fromkeys((*kept, *record.added)))
        self._put(replace(user, roles=roles))
        return any(role not in roles for role in user.roles)

    def _change_rules(self, record: RoleChanged) -> bool:
        if record.role == ADMIN:
            raise BadRequest(f"the role {ADMIN} may do everything, always: make another role")
        before = self._roles.get(record.role)
        verbs = {rule[1:]: set(rule.verbs) for rule in before or ()}
        for row in record.removed:
            rule = read_rule(row)
            verbs.get(rule[1:], set()).difference_update(rule.verbs)
        for row in record.added:
            rule = read_rule(row)
            verbs.setdefault(rule[1:], set()).update(rule.verbs)
        rules = RoleRules(Rule(tuple(sorted(verbs[key])), *key) for key in verbs if verbs[key])
        self._roles[record.role] = rules
        self.size += _size_of_rules(record.role, rules)
        if before is not None:
            self.size -= _size_of_rules(record.role, before)
        return any(set(rule.verbs) - verbs[rule[1:]] for rule in before or ())

    def _delete_role(self, role: str) -> None:
        if role not in self._roles:
            raise UnknownRole(f"no role {role}: `weir role list` names those that are there")
        self.size -= _size_of_rules(role, self._roles.pop(role))
        for user in [one for one in self._users.values() if role in one.roles]:
            self._put(replace(user, roles=tuple(one for one in user.roles if one != role)))

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted: rules that name exactly it, or a cluster of it, go with it. A later
        topic of the same name is another one, and needs rules of its own.
        """
        for role, rules in list(self._roles.items()):
            if any(rule.names(topic) for rule in rules):
                kept = RoleRules(rule for rule in rules if not rule.names(topic))
                self._roles[role] = kept
                self.size += _size_of_rules(role, kept) - _size_of_rules(role, rules)
                self.version += 1
                self.narrowed_at = self.version

    def _put(self, user: User) -> None:
        before = self._users.get(user.name)
        self.size += _size_of(user) - (_size_of(before) if before is not None else 0)
        self._users[user.name] = user

    def _known(self, name: str) -> User:
        user = self._users.get(name)
        if user is None:
            raise UnknownUser(f"no user {name}: `weir user list` names those that are there")
        return user

    def _check_roles(self, roles: tuple[str, ...]) -> None:
        for role in roles:
            if not self.has_role(role):
                raise UnknownRole(f"no role {role}: `weir role create {role}` makes it")

    def _check_room(self) -> None:
        most = max((len(user.roles) for user in self._users.values()), default=0)
        rules = max(map(len, self._roles.values()), default=0)
        for count, limit, what in (
            (len(self._users), USERS_MAX, "users in a set"),
            (len(self._roles), ROLES_MAX, "roles in a set"),
            (most, USER_ROLES_MAX, "roles of one user"),
            (rules, ROLE_RULES_MAX, "rules of one role: make another role"),
            (self.size, ACCESS_BYTES_MAX, "bytes of users and roles"),
        ):
            if count > limit:
                raise TooLarge(f"{count:,} of at most {limit:,} {what}", limit)

    # -- snapshots ---------------------------------------------------------------------------

    def encode(self) -> tuple[object, ...]:
        """Return it as MessagePack can hold it."""
        users = [
            (user.name, user.number, user.verifier, user.password_set, user.roles)
            for user in self._users.values()
        ]
        roles = [(role, [tuple(rule) for rule in rules]) for role, rules in self._roles.items()]
        issuers = (self.issuers.encode(),) if self.issuers else ()
        return self.mode, self.version, self.narrowed_at, self.secret, users, roles, *issuers

    @classmethod
    def decode(cls, row: Any) -> Access:
        """Return what `encode` gave."""
        access = cls()
        access.mode, access.version, access.narrowed_at, access.secret, users, roles, *more = row
        for issuers in more[:1]:
            access.issuers = TokenIssuers.decode(issuers)
        for name, number, verifier, password_set, held in users:
            known = msgspec.convert(verifier, StoredVerifier)
            access._put(User(name, number, known, password_set, tuple(held)))
        for role, rules in roles:
            access._roles[role] = found = RoleRules(map(read_rule, rules))
            access.size += _size_of_rules(role, found)
        return access


def _size_of(user: User) -> int:
    return _ROW_BYTES + len(user.name) + sum(map(len, user.roles))


def _size_of_rules(role: str, rules: RoleRules) -> int:
    verbs = sum(len(verb) for rule in rules for verb in rule.verbs)
    return _ROW_BYTES + len(role) + verbs + sum(_ROW_BYTES + len(rule.name) for rule in rules)


class Bearer(NamedTuple):
    """The user that a valid token names, and what else it says."""

    user: User
    claims: Claims


def bearer_of(access: Access, token: bytes, now: float) -> Bearer:
    """Return whose a token is at `now`, in seconds since 1970.

    Raises `NotAuthenticated`, which tells no stranger why, and `Unavailable` without the library.
    """
    try:
        claims = verify_token(token, access.issuers.verifying(), now)
    except MissingLibrary as error:
        raise Unavailable(f"this node accepts no logins by token: {error}") from None
    except NotAuthenticated:
        raise NotAuthenticated(NOBODY) from None
    issuer, limits = access.issuers.find(claims.issuer), claims.limits
    user = None if issuer is None else access.user(issuer.user(claims))
    if user is None or limits.number not in (0, user.number):
        raise NotAuthenticated(NOBODY)  # the user is gone, or another has its name now
    if limits.number and limits.version < user.password_set:
        # It may have been issued to somebody who knew the former password.
        raise NotAuthenticated(NOBODY)
    return Bearer(user, claims)
