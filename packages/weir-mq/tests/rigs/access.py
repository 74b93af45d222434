"""Users, roles and modes, as a test wants them in a shard, without entries of the registry."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, cast

from rigs.shards import catalog_of, sessions_of
from weir.access.credentials import ITERATIONS, ScramVerifier, make_verifier
from weir.broker.metadata.catalog import Catalog
from weir.broker.metadata.security.access import Access
from weir.broker.metadata.security.rules import ADMIN, RoleRules, Rule
from weir.broker.records.security import AccessFounded, AccessModeSet, RoleChanged, UserCreated
from weir.broker.runtime.session import ANONYMOUS
from weir.broker.shard import Shard

#: A verifier that no password fits.
VERIFIER = ScramVerifier(ITERATIONS, bytes(16), bytes(32), bytes(32))
SALT = bytes(range(16))


@cache
def verifier_of(password: str) -> ScramVerifier:
    """Return what is stored of a password."""
    return make_verifier(password, SALT)


def rule(verb: str, kind: str, name: str, is_prefix: bool = False) -> Rule:
    """Return a rule of one verb."""
    return Rule((verb,), kind, name, is_prefix)


def give(access: Access, user: str, *rules: Rule, admin: bool = False) -> str:
    """Let there be a user with a role of its own, that has these rules; return its principal."""
    role = user.replace("/", ".")
    rows = tuple((one.verbs, one.kind, one.name, one.is_prefix) for one in rules)
    access.apply(RoleChanged(role, rows, ()))
    access.apply(UserCreated(user, VERIFIER, (role, ADMIN) if admin else (role,)))
    found = access.user(user)
    assert found is not None
    return found.principal


def set_mode(access: Access, mode: Any) -> None:
    """Let access be open, watched or closed; there is an administrator from then on."""
    if not any(access.administrators()):
        access.apply(AccessFounded(bytes(32)))
        give(access, "default/root", admin=True)
    access.apply(AccessModeSet(mode))


class _Unaudited(Catalog):
    """A registry of which nothing is audited: the entries of an audit would end strangers."""

    __slots__ = ()
    is_audited = False


def close_access(shards: Sequence[Shard], mode: str = "closed") -> None:
    """Let all these shards go by rules, of which there are none but an administrator's."""
    for shard in shards:
        cast(Any, catalog_of(shard)).__class__ = _Unaudited
        set_mode(catalog_of(shard).access, mode)


class _Strangers(Access):
    """Rules which those have, too, who have not logged in: they may publish to two topics."""

    __slots__ = ()

    def roles_of(self, principal: str) -> Any:
        if principal != ANONYMOUS:
            return super().roles_of(principal)
        topics = ("default/locks", "default/doors")
        return [("strangers", RoleRules(rule("publish", "topic", one) for one in topics))]


def let_strangers_publish(shards: Sequence[Shard]) -> None:
    """Let these shards be closed, but for publishes of strangers to `locks` and `doors`."""
    close_access(shards)
    for shard in shards:
        cast(Any, catalog_of(shard).access).__class__ = _Strangers


def spoil_role(shard: Shard, role: str, *kept: Rule) -> None:
    """Let a role have other rules in this shard alone, and its version be another one."""
    access = catalog_of(shard).access
    access._roles[role] = RoleRules(kept)
    access.version += 1


def keep_rules(shard: Shard, role: str, *kept: Rule) -> None:
    """Let a role have other rules in this shard, and nobody know that anything is new."""
    catalog_of(shard).access._roles[role] = RoleRules(kept)


def lose_topic(shard: Shard, namespace: str, name: str) -> None:
    """Let a shard never have heard of a topic."""
    catalog = catalog_of(shard)
    del catalog._by_id[catalog._topics.pop((namespace, name)).id]


def end_revoked(shard: Shard) -> list[int]:
    """Look at live sessions, as is done behind an entry that takes something away; return the
    numbers of those that ended.
    """
    ended: list[int] = cast(Any, shard)._services.sessions.end_revoked()
    return ended


def be(shard: Shard, session: int, principal: str) -> None:
    """Let a session be that of a principal, as if it had logged in."""
    one = sessions_of(shard)[session]
    one.principal, one.admitted_at = principal, catalog_of(shard).access.version
