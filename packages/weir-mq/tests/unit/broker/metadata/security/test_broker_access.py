"""Users, roles and modes as entries make them: limits, snapshots, and heirs who get nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rigs.access import VERIFIER, give, rule, set_mode, verifier_of
from weir.broker.metadata.catalog import Catalog
from weir.broker.metadata.security import access as rooms
from weir.broker.metadata.security.access import Access
from weir.broker.records.registry import SchemaRuleSet, TopicCreated, TopicDeleted
from weir.broker.records.security import (
    AccessFounded,
    AccessModeSet,
    RoleChanged,
    RoleDeleted,
    UserCreated,
    UserPasswordSet,
    UserRevoked,
    UserRolesChanged,
)
from weir.errors import BadRequest, TooLarge, UnknownRole, UnknownUser, UserExists

PUBLISH = rule("publish", "topic", "default/t")


def copy_of(access: Access) -> Access:
    data = msgspec.msgpack.decode(msgspec.msgpack.encode(access.encode()), strict=False)
    return Access.decode(data)


def may(access: Access, principal: str) -> bool:
    return access.authorize(principal, "publish", "topic", "default/t") is not None


def test_one_of_the_same_name_inherits_nothing() -> None:
    access = Access()
    before = give(access, "default/ann", PUBLISH)
    assert may(access, before)
    access.apply(UserRevoked("default/ann"))
    assert not may(access, before)
    access.apply(UserCreated("default/ann", VERIFIER))
    user = access.user("default/ann")
    assert user is not None
    assert user.principal != before
    assert not may(access, user.principal), "roles go with the user"
    access.apply(UserRolesChanged("default/ann", ("default.ann",), ()))
    assert may(access, user.principal)
    assert not may(access, before), "who came as the first one is not the second one"


def test_a_role_of_the_same_name_is_nobodys() -> None:
    access = Access()
    ann = give(access, "default/ann", PUBLISH)
    access.apply(RoleDeleted("default.ann"))
    access.apply(RoleChanged("default.ann", ((*PUBLISH,),), ()))
    assert not may(access, ann)


def test_a_topic_of_the_same_name_is_nobodys() -> None:
    catalog = Catalog()
    catalog.create(TopicCreated("default", "t", 1, "partition", 70))
    catalog.create(TopicCreated("default", "t2", 1, "partition", 71))
    cluster = rule("consume", "cluster", "default/t:c")
    kept = [
        rule("publish", "topic", "default/t2"),
        rule("publish", "topic", "default/t", True),
        rule("consume", "cluster", "default/t2:c"),
        rule("create", "namespace", "default"),
    ]
    ann = give(catalog.access, "default/ann", PUBLISH, cluster, *kept)
    version = catalog.access.version
    catalog.delete(TopicDeleted(1))
    ((_, rules),) = catalog.access.roles_of(ann)
    assert [*rules] == kept
    assert catalog.access.version == catalog.access.narrowed_at == version + 1
    assert catalog.access.size == copy_of(catalog.access).size
    catalog.delete(TopicDeleted(2))


def test_what_takes_something_away_is_told_from_what_gives() -> None:
    access = Access()
    give(access, "default/ann", PUBLISH)
    shop: tuple[Any, ...] = (("read",), "topic", "default/t", False)
    read = rule("read", "topic", "default/t")
    steps = (
        (RoleChanged("default.ann", (shop,), ()), False),
        (RoleChanged("default.ann", (), ((*read._replace(name="default/u"),),)), False),
        (RoleChanged("default.ann", (shop,), (shop,)), False),
        (RoleChanged("default.ann", (), (shop,)), True),
        (UserRolesChanged("default/ann", ("admin",), ()), False),
        (UserRolesChanged("default/ann", ("admin",), ("admin",)), False),
        (AccessModeSet("watch"), True),
        (AccessModeSet("closed"), True),
        (AccessModeSet("closed"), False),
        (UserCreated("default/bob", VERIFIER, ("admin",)), False),
        (UserRolesChanged("default/ann", (), ("admin",)), True),
        (UserPasswordSet("default/ann", VERIFIER), True),
        (RoleDeleted("default.ann"), True),
        (AccessModeSet("open"), False),
        (UserRevoked("default/ann"), True),
    )
    for record, narrows in steps:
        before = access.version
        access.apply(record)
        assert access.version == before + 1
        assert (access.narrowed_at == access.version) == narrows, record


def test_rules_with_the_same_resource_are_one() -> None:
    access = Access()
    one, two = (rule(verb, "topic", "default/t") for verb in ("publish", "read"))
    access.apply(RoleChanged("shop", ((*one,), (*two,)), ()))
    ((_, (both,)),) = access.roles()
    assert both.verbs == ("publish", "read")
    access.apply(RoleChanged("shop", (), ((*one,),)))
    ((_, (left,)),) = access.roles()
    assert left.verbs == ("read",)
    access.apply(RoleChanged("shop", (), ((*two,),)))
    assert [(role, [*rules]) for role, rules in access.roles()] == [("shop", [])]


def test_a_closed_set_can_always_be_opened_again() -> None:
    access = Access()
    give(access, "default/ann", PUBLISH)
    with pytest.raises(BadRequest, match="no user could open it again"):
        access.apply(AccessModeSet("closed"))
    assert access.mode == "open"
    give(access, "default/root", rule("administer", "system", ""))
    access.apply(AccessModeSet("closed"))
    for record in (
        UserRevoked("default/root"),
        RoleDeleted("default.root"),
        RoleChanged("default.root", (), ((*rule("administer", "system", ""),),)),
        UserRolesChanged("default/root", (), ("default.root",)),
    ):
        state = access.encode()
        with pytest.raises(BadRequest, match="no user could open it again"):
            access.apply(record)
        assert access.encode() == state, "it changes nothing, not in part either"
    access.apply(UserRolesChanged("default/ann", ("admin",), ()))
    access.apply(UserRevoked("default/root"))


def test_what_is_not_there_is_refused_and_changes_nothing() -> None:
    access = Access()
    give(access, "default/ann", PUBLISH)
    for record, error in (
        (UserCreated("default/ann", VERIFIER), UserExists),
        (UserCreated("default/bob", VERIFIER, ("nothing",)), UnknownRole),
        (UserPasswordSet("default/bob", VERIFIER), UnknownUser),
        (UserRolesChanged("default/bob", (), ()), UnknownUser),
        (UserRolesChanged("default/ann", ("nothing",), ()), UnknownRole),
        (UserRevoked("default/bob"), UnknownUser),
        (RoleDeleted("nothing"), UnknownRole),
        (RoleDeleted("admin"), UnknownRole),
        (RoleChanged("admin", ((*PUBLISH,),), ()), BadRequest),
    ):
        state = access.encode()
        with pytest.raises(error):
            access.check(record)
        with pytest.raises(error):
            access.apply(record)
        assert access.encode() == state


def test_users_roles_and_bytes_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    access = Access()
    give(access, "default/ann", PUBLISH)
    user = UserCreated("default/bob", VERIFIER)
    for name, limit, record in (
        ("USERS_MAX", 1, user),
        ("ROLES_MAX", 1, RoleChanged("more", (), ())),
        ("USER_ROLES_MAX", 1, UserRolesChanged("default/ann", ("admin",), ())),
        ("ROLE_RULES_MAX", 1, RoleChanged(
            "default.ann", ((*rule("read", "topic", "default/u"),),), ()
        )),
        ("ACCESS_BYTES_MAX", access.size, user),
    ):  # fmt: skip
        state, size = access.encode(), access.size
        with monkeypatch.context() as patched:
            patched.setattr(rooms, name, limit)
            with pytest.raises(TooLarge, match="at most"):
                access.apply(record)
        assert (access.encode(), access.size) == (state, size)
        access.check(record)


def test_a_snapshot_holds_all_of_it() -> None:
    access = Access()
    set_mode(access, "closed")
    ann = give(access, "default/ann", PUBLISH, rule("read", "topic", "shop/", True))
    access.apply(UserPasswordSet("default/ann", verifier_of("hunter22")))
    copy = copy_of(access)
    assert copy.encode() == access.encode()
    assert copy.size == access.size
    assert may(copy, ann)
    assert copy.user("default/ann") == access.user("default/ann")
    assert (copy.mode, copy.version, copy.narrowed_at, copy.secret) == (
        access.mode, access.version, access.narrowed_at, access.secret,
    )  # fmt: skip


def test_a_checkpoint_without_users_is_that_of_the_release_before() -> None:
    catalog = Catalog()
    catalog.create(TopicCreated("default", "t", 1, "partition", 70))
    assert catalog.encode()[0] == 5  # type: ignore[index]
    catalog.schemas.set_rule(SchemaRuleSet(1, "full", None))
    assert catalog.encode()[0] == 8  # type: ignore[index]
    catalog.access.apply(AccessFounded(bytes(32)))
    data = catalog.encode()
    assert data[0] == 9  # type: ignore[index]
    copy = Catalog.decode(msgspec.msgpack.decode(msgspec.msgpack.encode(data), strict=False))
    assert copy.access.secret == bytes(32)
    assert copy.schemas.of(1).rule == "full"


def test_the_first_secret_is_the_sets_for_good() -> None:
    access = Access()
    access.apply(AccessFounded(bytes(32)))
    access.apply(AccessFounded(bytes([1]) * 32))
    assert access.secret == bytes(32)
