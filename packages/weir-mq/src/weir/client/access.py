"""Users, rights and quotas: what administrators set, and which requests were refused.

`Access` has users, roles, rules, tokens and modes; `Fleets` has devices; `Quotas` limits namespaces
and principals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, cast

import msgspec

from weir.access.credentials import SALT_BYTES, ScramVerifier, make_verifier
from weir.access.devices import Level, derive_secret
from weir.access.tokens import read_jwks
from weir.client.connection.network_client import NetworkClient
from weir.client.connection.system import SYSTEM, in_daemon
from weir.errors import Unauthorized, WeirError
from weir.model.ids import place_of
from weir.protocol.client import access as a
from weir.protocol.client import fleets as f
from weir.protocol.client import messages as m
from weir.protocol.client import quotas as q
from weir.protocol.client import tokens as t
from weir.protocol.client.nodes import ListNodes, NodeList

#: Of random bytes, which a key of tokens is named by.
_KEY_ID_BYTES = 8
#: What is done with what no rule allows: it is allowed; allowed and counted; refused.
AccessMode = Literal["open", "watch", "closed"]


class AccessRule(msgspec.Struct, frozen=True):
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


class AccessUser(msgspec.Struct, frozen=True):
    """A user, `NAMESPACE/NAME`, and its roles."""

    name: str
    roles: tuple[str, ...]


class AccessState(msgspec.Struct, frozen=True):
    """The state of access: the mode of the set, users, and roles with their rules, by name."""

    mode: AccessMode
    version: int
    users: tuple[AccessUser, ...]
    roles: dict[str, tuple[AccessRule, ...]]


class AccessChange(msgspec.Struct, frozen=True):
    """A change is made; all shards keep to it but those that were not `reached`, by (node, shard),
    which do once they hear of it. Without any news these have ended all sessions that they let in
    by `stops_by_ms`, in milliseconds since 1970; 0 if all were reached, or if that is not known.
    """

    version: int
    unreached: tuple[tuple[int, int], ...]
    stops_by_ms: int = 0


class TokenKeyState(msgspec.Struct, frozen=True):
    """A key that verifies tokens of an issuer for an audience: of users of the namespace that it
    names, or, of the set itself, of any. Whether it `signs` tokens that the set issues.
    """

    issuer: str
    audience: str
    namespace: str
    key: str
    algorithm: str
    signs: bool


class Token(msgspec.Struct, frozen=True):
    """A token, and the second since 1970 at which it ends."""

    token: str
    ends: int

    def __repr__(self) -> str:
        """Show no token."""
        return f"Token(ends={self.ends})"


class AccessReason(msgspec.Struct, frozen=True):
    """Whether a user may do something, and the role and rule that let it."""

    allowed: bool
    role: str = ""
    rule: AccessRule | None = None


class AccessRefusal(msgspec.Struct, frozen=True):
    """What a principal asked for and no rule allows, and how often."""

    principal: str
    rule: AccessRule
    count: int


class Access:
    """Administers users, roles and rights of a system."""

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

    async def create_token_key(self) -> str:
        """Let the set have another key that signs tokens, which is kept wrapped; return its id. The
        newest key signs, all verify. Raises `BadRequest` without a key file, `LevelTooLow`.
        """
        key = SYSTEM.get().secret_bytes(_KEY_ID_BYTES).hex()
        await self._change(t.CreateTokenKey(key))
        return key

    async def trust_issuer(
        self, issuer: str, audience: str, namespace: str, jwks: bytes
    ) -> AccessChange:
        """Take tokens of an issuer for an audience, which the keys of a JWKS file verify, and no
        others of it: `sub` names a user of the namespace. Raises `BadRequest`, `BadName`.
        """
        keys = await in_daemon(lambda: read_jwks(jwks))
        return await self._change(t.TrustIssuer(issuer, audience, namespace, keys))

    async def remove_token_key(self, issuer: str = "", key: str = "") -> AccessChange:
        """Remove a key of an issuer, or all of it; an empty `issuer` is the set. Connections that
        came by tokens of that key end.
        """
        return await self._change(t.RemoveTokenKey(issuer, key))

    async def token_keys(self) -> list[TokenKeyState]:
        """Return the keys that verify tokens."""
        found = await self._network.request(t.ListTokenKeys(), t.TokenKeyList)
        return [
            TokenKeyState(
                row.issuer, row.audience, row.namespace, row.key, row.algorithm, row.signs
            )
            for row in found.keys
        ]

    async def opens_token_keys(self) -> bool:
        """Return whether the node that answers opens the keys that sign."""
        return (await self._network.request(t.ListTokenKeys(), t.TokenKeyList)).opens

    async def issue_token(
        self,
        seconds: int,
        *,
        user: str = "",
        token_id: str = "",
        roles: Sequence[str] | None = None,
        topics: Sequence[str] | None = None,
    ) -> Token:
        """Return a token that lives so many seconds: of the user that this client is, for a day at
        most; or of a `user`, as an administrator. It gives only these `roles`, and rights to these
        `topics` alone; None: to all. Tokens with one `token_id` renew each other.

        Raises `BadRequest` if the session logged in by a token, or the set has no key that signs;
        `UnknownUser`, `UnknownRole`, `Unauthorized`, `TooLarge`.
        """
        limits = (
            None if roles is None else tuple(roles), None if topics is None else tuple(topics)
        )  # fmt: skip
        if user:
            request: m.Request = t.IssueTokenFor(user, seconds, token_id, *limits)
        else:
            request = t.IssueToken(seconds, token_id, *limits)
        issued = await self._network.request(request, t.TokenIssued)
        return Token(issued.token.decode(), issued.ends)

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

    async def _change(self, request: m.Request) -> AccessChange:
        return change_of(await self._network.request(request, a.AccessChanged))


def change_of(made: a.AccessChanged) -> AccessChange:
    """Return a change as a client shows it."""
    return AccessChange(made.version, tuple(made.unreached), made.stops_by_ms)


async def _verifier(password: str) -> ScramVerifier:
    salt = SYSTEM.get().secret_bytes(SALT_BYTES)
    return await in_daemon(lambda: make_verifier(password, salt))


def _rule(row: a.RuleRow) -> AccessRule:
    return AccessRule(tuple(row.verbs), row.kind, row.name, row.prefix)


class Fleet(msgspec.Struct, frozen=True):
    """Hubs `first` to `last`, both included, and the versions of the key that their secrets are
    made by. At level 1 they prove who they are, at 2 they sign their frames besides. Their messages
    have its `tag`, if it has one.
    """

    name: str
    first: int
    last: int
    level: Level
    versions: tuple[int, ...]
    tag: str = ""


class FleetDevice(msgspec.Struct, frozen=True):
    """The fleet of a hub (empty: none), and the generation of its device that may log in, unless
    that was revoked. The generation `before` may log in, too, until a device of the new one does;
    None: it may not.
    """

    hub: int
    fleet: str
    generation: int
    is_revoked: bool
    before: int | None = None

    def secret(self, fleet_key: bytes, system: int) -> bytes:
        """Return the secret to flash into this device, 32 bytes, made by a version of its fleet's
        key and the id of the system. Raises `ValueError` for a key of another size.
        """
        return derive_secret(fleet_key, system, self.hub, self.generation)


class Fleets:
    """The fleets of a system."""

    __slots__ = ("_network",)

    def __init__(self, network: NetworkClient) -> None:
        """Ask over the connections of a client, whose `fleets` this is."""
        self._network = network

    async def put(
        self,
        name: str,
        first: int,
        last: int,
        level: Level,
        version: int = 0,
        key: bytes = b"",
        tag: str = "",
    ) -> Fleet:
        """Make a fleet of hubs `first` to `last`, or change the one of this name;
        with a `key` of 32 bytes, that is the `version` of its key, beside those that it has. What
        its devices publish has the `tag`.

        Raises `BadRequest` where a hub belongs to another fleet, or a version to another key, or a
        node has no key file; `BadName` and `LevelTooLow`.
        """
        request = f.PutFleet(name, first, last, level, version, key, tag)
        return _fleet((await self._network.request(request, f.FleetChanged)).fleet)

    async def remove(self, name: str) -> Fleet:
        """Remove a fleet and return it. Its hubs belong to no fleet then; in an open set they may
        connect without a proof. Raises `BadRequest` if there is no such fleet.
        """
        return _fleet((await self._network.request(f.RemoveFleet(name), f.FleetChanged)).fleet)

    async def drop_key(self, name: str, version: int) -> Fleet:
        """Remove a version of a fleet's key: devices whose secrets were made by it are refused.

        Raises `BadRequest` if it is the only one.
        """
        request = f.DropFleetKey(name, version)
        return _fleet((await self._network.request(request, f.FleetChanged)).fleet)

    async def list(self) -> tuple[Fleet, ...]:
        """Return all fleets, in the order of their hubs."""
        found = await self._network.request(f.ListFleets(), f.FleetList)
        return tuple(map(_fleet, found.fleets))

    async def opens_keys(self) -> bool:
        """Return whether the node that answers can open the keys of all fleets. If not, devices
        cannot log in there.
        """
        return (await self._network.request(f.ListFleets(), f.FleetList)).opens

    async def device(self, hub: int) -> FleetDevice:
        """Return what is known of a hub's device."""
        return _device(await self._network.request(f.DescribeDevice(hub), f.DeviceInfo))

    async def replace_device(self, hub: int, generation: int) -> FleetDevice:
        """Let the device of this generation log in. The device that may log in now may do so until
        the new one has proved its identity.

        Raises `BadRequest` if the hub is as far or further, or belongs to no fleet.
        """
        request = f.ReplaceDevice(hub, generation)
        return _device(await self._network.request(request, f.DeviceInfo))

    async def end_devices_before(self, hub: int, generation: int) -> AccessChange:
        """Let only the device of this generation log in: each shard that is reached refuses all
        before it from now on. Raises `BadRequest` if the hub is further, or belongs to no fleet.
        """
        return await self._set(f.SetDevice(hub, generation))

    async def revoke_device(self, hub: int, generation: int) -> AccessChange:
        """Refuse logins of this hub until its device is replaced by one of a later generation; its
        connections end on each shard that is reached. Raises `BadRequest` if the hub is further,
        or belongs to no fleet.
        """
        return await self._set(f.SetDevice(hub, generation, True))

    async def _set(self, request: f.SetDevice) -> AccessChange:
        return change_of(await self._network.request(request, a.AccessChanged))


def _fleet(row: f.FleetRow) -> Fleet:
    return Fleet(row.name, row.first, row.last, Level(row.level), tuple(row.versions), row.tag)


def _device(info: f.DeviceInfo) -> FleetDevice:
    before = info.before if info.before >= 0 else None
    return FleetDevice(info.hub, info.fleet, info.generation, info.is_revoked, before)


class Quota(msgspec.Struct, frozen=True):
    """The limits of `namespace:NAME`, `user:NAMESPACE/NAME`, `fleet:NAME` or `anonymous`, by quota,
    and how much of each is used, as far as that is known: rates as of the second before.

    `throttled_ms` is for how long its connections waited, all together, since the leader of the
    registry leads.
    """

    entity: str
    limits: Mapping[str, int]
    used: Mapping[str, int] = msgspec.field(default_factory=dict)
    throttled_ms: int = 0


class Quotas:
    """The quotas of a system."""

    __slots__ = ("_network",)

    def __init__(self, network: NetworkClient) -> None:
        """Ask over the connections of a client, whose `quotas` this is."""
        self._network = network

    async def set(self, entity: str, limits: Mapping[str, int | None]) -> Quota:
        """Set limits of an entity by the names of quotas, such as `bytes_in`; None removes one, and
        those that are not named stay. Return all limits that it has then.

        Raises `BadRequest` for what is no entity or quota, `BadName`, `LevelTooLow`, and `TooLarge`
        where too many have quotas.
        """
        request = q.SetQuota(entity, tuple(limits.items()))
        return _quota((await self._network.request(request, q.QuotaChanged)).quota)

    async def remove(self, entity: str) -> Quota:
        """Remove the quotas of an entity and return them. Raises `BadRequest` if it had none."""
        request = q.RemoveQuota(entity)
        return _quota((await self._network.request(request, q.QuotaChanged)).quota)

    async def list(self) -> tuple[Quota, ...]:
        """Return all quotas and how much of them is used, in the order of their entities."""
        found: list[Quota] = []
        after, more = "", True
        while more:
            page = await self._network.request(q.ListQuotas(after), q.QuotaList)
            found += [
                Quota(one.entity, dict(one.limits), dict(one.used), one.throttled_ms)
                for one in page.quotas
            ]
            more = page.more and bool(page.quotas)
            after = found[-1].entity if found else ""
        return tuple(found)

    async def describe(self, entity: str) -> Quota:
        """Return the limits of an entity, and how much of each it uses; without limits if it has no
        quota.
        """
        found = (one for one in await self.list() if one.entity == entity)
        return next(found, Quota(entity, {}))


def _quota(row: q.QuotaRow) -> Quota:
    return Quota(row.entity, dict(row.limits))
