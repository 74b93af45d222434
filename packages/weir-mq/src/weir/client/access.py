"""Users, roles, rules and modes, for administrators; and what was refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from weir.access.credentials import SALT_BYTES, ScramVerifier, make_verifier
from weir.client.connection.network_client import NetworkClient
from weir.client.connection.system import SYSTEM, in_daemon
from weir.errors import Unauthorized, WeirError
from weir.model.ids import place_of
from weir.protocol.client import access as a
from weir.protocol.client.nodes import ListNodes, NodeList

#: What is done with what no rule allows: it is allowed; allowed and counted; refused.
AccessMode = Literal["open", "watch", "closed"]


@dataclass(frozen=True, slots=True)
class AccessRule:
    """Allows verbs with the resources of a kind that have exactly this name, or, with `prefix`, a
    name that begins so. Topics are named `[NAMESPACE/]TOPIC`, clusters `[NAMESPACE/]TOPIC:CLUSTER`.
    """

    verbs: tuple[str, ...]
    kind: str
    name: str = ""
    prefix: bool = False

    def __str__(self) -> str:
        """Return it as `weir acl allow ROLE` takes it."""
        how = (" --prefix" if self.name else " --everything") if self.prefix else ""
        return f"{','.join(self.verbs)} {self.kind} {self.name}".rstrip() + how


@dataclass(frozen=True, slots=True)
class AccessUser:
    """A user, `NAMESPACE/NAME`, and its roles."""

    name: str
    roles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AccessState:
    """Who may do what: the mode of the set, users, and roles with their rules, by name."""

    mode: AccessMode
    version: int
    users: tuple[AccessUser, ...]
    roles: dict[str, tuple[AccessRule, ...]]


@dataclass(frozen=True, slots=True)
class AccessChange:
    """A change is made; all shards keep to it but those that were not `reached`, by (node, shard),
    which do once they hear of it.
    """

    version: int
    unreached: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class AccessReason:
    """Whether a user may do something, and the role and rule that let it."""

    allowed: bool
    role: str = ""
    rule: AccessRule | None = None


@dataclass(frozen=True, slots=True)
class AccessRefusal:
    """What a principal asked for and no rule allows, and how often."""

    principal: str
    rule: AccessRule
    count: int


class Access:
    """Who may do what in a system."""

    __slots__ = ("_network",)

    def __init__(self, network: NetworkClient) -> None:
        """Ask over the connections of a client, whose `access` this is."""
        self._network = network

    async def describe(self) -> AccessState:
        """Return the mode, all users and all roles."""
        users: list[AccessUser] = []
        roles: dict[str, tuple[AccessRule, ...]] = {}
        after_user = after_role = ""
        while True:
            request = a.DescribeAccess(after_user, after_role)
            found = await self._network.request(request, a.AccessInfo)
            users += [AccessUser(row.user, row.roles) for row in found.users]
            roles |= {row.role: tuple(map(_rule, row.rules)) for row in found.roles}
            if not found.more:
                mode = cast(AccessMode, found.mode)
                return AccessState(mode, found.version, tuple(users), roles)
            after_user = users[-1].name if users else ""
            after_role = [*roles][-1] if roles else ""

    async def create_user(
        self, user: str, password: str, roles: Sequence[str] = ()
    ) -> AccessChange:
        """Create a user with roles. The password stays here: the broker gets what checks it.

        Raises `UserExists`, `UnknownRole`, `BadName`, `LevelTooLow`, `TooLarge`; `BadRequest` for
        what can be no password.
        """
        verifier = await _verifier(password)
        return await self._change(a.ChangeUser("create", user, verifier, tuple(roles)))

    async def set_password(self, user: str, password: str) -> AccessChange:
        """Give a user another password: connections that came by the one before end. Raises
        `UnknownUser`, `BadRequest`.
        """
        return await self._change(a.ChangeUser("password", user, await _verifier(password)))

    async def change_roles(
        self, user: str, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> AccessChange:
        """Give a user roles, and take roles from it. Raises `UnknownUser`, `UnknownRole`, or
        `BadRequest` if nobody could administer a closed set any more.
        """
        request = a.ChangeUser("roles", user, None, tuple(add), tuple(remove))
        return await self._change(request)

    async def revoke_user(self, user: str) -> AccessChange:
        """Let a user be gone, with all it had: its connections end, and what they wait for is
        refused by `AccessRevoked`. One that is not there is gone already. Raises `BadRequest` for
        the last administrator of a closed set.
        """
        return await self._change(a.ChangeUser("revoke", user))

    async def change_rules(
        self, role: str, add: Sequence[AccessRule] = (), remove: Sequence[AccessRule] = ()
    ) -> AccessChange:
        """Let a role do more, and less; one that is not there is made. Raises `BadRequest` and
        `BadName`, which say what to write, `TooLarge`, `LevelTooLow`.
        """
        added, removed = (
            tuple(a.RuleRow(one.verbs, one.kind, one.name, one.prefix) for one in rules)
            for rules in (add, remove)
        )
        return await self._change(a.ChangeRole(role, added, removed))

    async def delete_role(self, role: str) -> AccessChange:
        """Delete a role, which no user has any more then."""
        return await self._change(a.ChangeRole(role, delete=True))

    async def set_mode(self, mode: AccessMode) -> AccessChange:
        """Let the set be "open", "watch" or "closed" from here on. Raises `BadRequest` for "closed"
        while no user is an administrator.
        """
        return await self._change(a.SetAccessMode(mode))

    async def rewrap(self, progress: Callable[[int], None] | None = None) -> None:
        """Let all secrets at rest be wrapped by the first key of the nodes' key file; `progress` is
        told how many are left. It may be asked again after it was cut off. Raises `BadRequest`
        without a key file, `Unavailable` where that lacks the key of one.
        """
        left = -1
        while left:
            left = (await self._network.request(a.RewrapSecrets(), a.SecretsLeft)).left
            if progress is not None:
                progress(left)

    async def secrets_left(self) -> int:
        """Return how many secrets are stored that the first key of the nodes' key file did not
        wrap. Raises `BadRequest` if the nodes have no key file.
        """
        return (await self._network.request(a.RewrapSecrets(True), a.SecretsLeft)).left

    async def explain(self, user: str, verb: str, kind: str, name: str = "") -> AccessReason:
        """Return whether a user may do a verb with a resource, and why. Raises `UnknownUser`."""
        found = await self._network.request(
            a.ExplainAccess(user, verb, kind, name), a.AccessExplained
        )
        rule = None if found.rule is None else _rule(found.rule)
        return AccessReason(found.allowed, found.role, rule)

    async def refusals(self) -> list[AccessRefusal]:
        """Return what all shards refused since they started, or would have in the mode "watch".

        What a shard that is away refused is missing.
        """
        counts: dict[tuple[str, AccessRule], int] = {}
        for place in await self._places():
            try:
                found = await self._network.request(
                    a.ListRefusals(place), a.RefusalList, again=False
                )
            except Unauthorized:
                raise
            except WeirError:
                continue
            for row in found.rows:
                rule = AccessRule((row.verb,), row.kind, row.name)
                counts[row.principal, rule] = counts.get((row.principal, rule), 0) + row.count
        return [AccessRefusal(who, rule, count) for (who, rule), count in counts.items()]

    async def _places(self) -> list[int]:
        """Return the places of all shards of the set."""
        found = await self._network.request(ListNodes(), NodeList)
        return [
            place_of(node.id, shard)
            for node in found.nodes
            if node.state != "removed"
            for shard in range(max(node.shards, 1))
        ]

    async def _change(self, request: a.ChangeUser | a.ChangeRole | a.SetAccessMode) -> AccessChange:
        made = await self._network.request(request, a.AccessChanged)
        return AccessChange(made.version, tuple(made.unreached))


async def _verifier(password: str) -> ScramVerifier:
    salt = SYSTEM.get().secret_bytes(SALT_BYTES)
    return await in_daemon(lambda: make_verifier(password, salt))


def _rule(row: a.RuleRow) -> AccessRule:
    return AccessRule(tuple(row.verbs), row.kind, row.name, row.prefix)
