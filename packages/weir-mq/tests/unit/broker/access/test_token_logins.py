"""Logins by token at a shard: whose tokens are taken, what they give, and what nobody learns."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from rigs.access import be, give, rule, set_mode, verifier_of
from rigs.shards import catalog_of, sessions_of, trunks_of
from rigs.tokens import IDP, IDP_KEY, enter_by, hung_up, principal_of, token_of, trust
from weir.access.scram import MECHANISM, ScramClient, encode_nonce
from weir.access.signatures import PrivateKey
from weir.access.tokens import (
    BEARER,
    LEEWAY_SECONDS,
    Claims,
    SessionToken,
    TokenLimits,
    issue_token,
)
from weir.access.wrapping import KeyRing
from weir.broker.api import events as ev
from weir.broker.metadata.catalog import Catalog
from weir.broker.metadata.security import issuers as limits
from weir.broker.records.security import (
    RoleDeleted,
    UserCreated,
    UserPasswordSet,
    UserRevoked,
)
from weir.errors import (
    AccessRevoked,
    BadRequest,
    LevelTooLow,
    NotAuthenticated,
    Unauthorized,
    Unavailable,
    UnknownRole,
    UnknownTopic,
    UnknownUser,
)
from weir.model.topic import Mode
from weir.protocol.client import access as w
from weir.protocol.client import messages as m
from weir.protocol.client import tokens as t

RING = KeyRing([bytes(range(32))])
ROOT, ANN, SYSTEM = "default/root", "default/ann", 99
OWN = f"weir://{SYSTEM:x}"
T, U = "default/t", "default/u"


@pytest.fixture
def rig(make_rig: Callable[..., Any]) -> Any:
    """A closed set with topics t and u, where session 1 is an administrator's."""
    return closed(make_rig(secret_bytes=random.Random(7).randbytes, key_ring=RING))


def closed(rig: Any) -> Any:
    rig.connect(1)
    for topic in ("t", "u"):
        rig.answer(1, m.CreateTopic(topic))
    rig.handle(set_closed(rig))
    rig.connect(1, hello=False)
    be_root(rig)
    rig.answer(1, m.Hello("root"))
    return rig


def set_closed(rig: Any) -> Any:

    access = catalog_of(rig.shard).access
    set_mode(access, "closed")
    give(access, ANN, *(rule("read", "topic", one) for one in (T, U)),
         rule("publish", "topic", T), rule("consume", "cluster", f"{T}:c"))  # fmt: skip
    return ev.Closed(1)


def be_root(rig: Any) -> None:

    access = catalog_of(rig.shard).access
    be(rig.shard, 1, access.user(ROOT).principal)


def now(rig: Any) -> float:
    return float(rig.time.wall_ms() / 1000)


def refused(reply: Any) -> tuple[int, str, int]:
    assert isinstance(reply, m.Refusal), reply
    return reply.code, reply.message, reply.detail


def own_token(rig: Any, user: str = "ann", seconds: int = 600, **more: Any) -> bytes:
    issued = rig.answer(1, t.IssueTokenFor(user, seconds, **more))
    assert isinstance(issued, t.TokenIssued), issued
    return issued.token


# -- who comes in --------------------------------------------------------------------------------


def test_a_token_of_a_trusted_issuer_lets_its_user_in(rig: Any) -> None:
    assert isinstance(rig.answer(1, trust()), w.AccessChanged)
    step = enter_by(rig, 2, token_of(now(rig)))
    assert (step.message, step.done, step.user) == (b"600", True, ANN)
    assert principal_of(rig, 2) == catalog_of(rig.shard).access.user(ANN).principal
    assert isinstance(rig.answer(2, m.Hello("x")), m.Welcome)
    assert isinstance(rig.answer(2, m.DescribeTopic("t")), m.TopicInfo)
    assert rig.answer(2, m.CreateTopic("v")).code == Unauthorized.code
    assert hung_up(rig) == []


def test_a_token_that_the_set_issued_lets_its_user_in(rig: Any) -> None:
    rig.answer(1, t.CreateTokenKey("k1"))
    step = enter_by(rig, 2, own_token(rig))
    assert (step.done, step.user) == (True, ANN)
    assert isinstance(rig.answer(2, m.Hello("x")), m.Welcome)


def test_all_failures_read_alike(rig: Any) -> None:
    """Also where a token was good once: why it is not any more is nothing for strangers."""
    rig.answer(1, trust())
    rig.answer(1, t.CreateTokenKey("k1"))
    at, stranger = now(rig), PrivateKey.from_seed(b"x" * 32)
    late, early = -LEEWAY_SECONDS - 10, at + 100
    gone = own_token(rig)
    access = catalog_of(rig.shard).access
    access.apply(UserRevoked(ANN))
    access.apply(UserCreated(ANN, verifier_of("new")))
    good = token_of(at)
    bad = [
        gone,
        token_of(at, "bob"),
        token_of(at, "other/ann"),
        token_of(at, "a b"),
        token_of(at, issuer="https://other"),
        token_of(at, audiences=("other",)),
        token_of(at, key=stranger),
        token_of(at, kid="none"),
        token_of(at - 600, seconds=600 + late),
        token_of(at, not_before=early),
        good[:-4] + b"AAAA",
        b"",
        b"x",
        b"a.b.c",
        good * 40,
    ]
    words = set()
    for session, token in enumerate(bad, 10):
        words.add(refused(enter_by(rig, session, token))[:2])
        assert hung_up(rig)[-1] == session
        assert principal_of(rig, session) == "anonymous"
    ((code, _),) = words
    assert code == NotAuthenticated.code
    assert enter_by(rig, 90, good).done


def test_only_where_nobody_reads_along(rig: Any) -> None:
    rig.answer(1, trust())
    reply = enter_by(rig, 2, token_of(now(rig)), is_private=False)
    assert reply.code == NotAuthenticated.code
    assert "need TLS" in reply.message


def test_a_login_goes_on_by_the_mechanism_that_it_began_with(rig: Any) -> None:
    """Neither is a fallback of the other, so nobody gets a second attempt by it."""
    rig.answer(1, trust())
    token = token_of(now(rig))
    assert enter_by(rig, 2, b"x").code == NotAuthenticated.code
    client = ScramClient("ann", encode_nonce(b"n" * 18))
    rig.replies[3] = []

    rig.handle(ev.Opened(3))
    rig.handle(ev.Secured(3))
    assert not rig.answer(3, w.Login(MECHANISM, client.first)).done
    assert "began with" in rig.answer(3, w.Login(BEARER, token)).message
    assert principal_of(rig, 3) == "anonymous"


def test_an_issuer_names_users_of_its_namespace_alone(rig: Any) -> None:
    access = catalog_of(rig.shard).access
    give(access, "shop/ann", rule("read", "topic", T))
    rig.answer(1, trust(namespace="shop"))
    assert enter_by(rig, 2, token_of(now(rig), "ann")).user == "shop/ann"
    for session, subject in enumerate(("default/root", "shop/ann", "root", "../ann"), 3):
        reply = enter_by(rig, session, token_of(now(rig), subject))
        assert reply.code == NotAuthenticated.code, subject


def test_who_cannot_know_of_revocations_lets_nobody_in(rig: Any, monkeypatch: Any) -> None:
    rig.answer(1, trust())
    token = token_of(now(rig))
    trunks = trunks_of(rig.shard)
    monkeypatch.setattr(type(trunks), "in_sync", property(lambda _: False))
    assert enter_by(rig, 2, token).code == Unavailable.code


# -- what it gives -------------------------------------------------------------------------------


def test_topics_limit_what_a_token_gives(rig: Any) -> None:
    rig.answer(1, t.CreateTokenKey("k1"))
    enter_by(rig, 2, own_token(rig, topics=("t",)))
    rig.answer(2, m.Hello("x"))
    info = rig.answer(2, m.DescribeTopic("t"))
    assert not isinstance(rig.answer(2, m.Fetch(info.addresses[0], 0, 100)), m.Refusal)
    absent = rig.answer(2, m.DescribeTopic("u"))
    assert (absent.code, absent.message) == refused(rig.answer(2, m.DescribeTopic("none")))[:2]
    assert absent.code == UnknownTopic.code
    assert [one.name for one in rig.answer(2, m.ListTopics()).topics] == ["t"]
    assert isinstance(rig.answer(2, m.OpenProducer()), m.ProducerGrant)


def test_a_token_of_an_administrator_for_a_topic_administers_nothing(rig: Any) -> None:
    rig.answer(1, t.CreateTokenKey("k1"))
    enter_by(rig, 2, own_token(rig, "root", topics=("t",)))
    rig.answer(2, m.Hello("x"))
    for request in (
        w.DescribeAccess(), w.ChangeUser("revoke", "ann"), t.IssueTokenFor("root", 60),
        m.CreateTopic("v"), m.CreateTopic("t2"),
    ):  # fmt: skip
        assert rig.answer(2, request).code == Unauthorized.code, request
    assert rig.answer(2, m.DescribeTopic("u")).code == UnknownTopic.code
    assert isinstance(rig.answer(2, m.DescribeTopic("t")), m.TopicInfo)


def test_a_cluster_of_a_topic_that_the_token_gives_is_given(rig: Any) -> None:
    rig.answer(1, t.CreateTokenKey("k1"))
    address = rig.answer(1, m.DescribeTopic("t")).addresses[0]

    for session, topics in ((2, ("t",)), (3, ("u",))):
        enter_by(rig, session, own_token(rig, topics=topics))
        rig.answer(session, m.Hello("x"))
    assert not isinstance(rig.answer(2, m.OpenCluster(address, "c", Mode.SHARED)), m.Refusal)
    assert rig.answer(3, m.OpenCluster(address, "c", Mode.SHARED)).code == UnknownTopic.code


def test_roles_limit_what_a_token_gives(rig: Any) -> None:
    rig.answer(1, t.CreateTokenKey("k1"))
    access = catalog_of(rig.shard).access
    give(access, "default/bob", rule("read", "topic", T), admin=True)
    enter_by(rig, 2, own_token(rig, "bob", roles=("default.bob",)))
    rig.answer(2, m.Hello("x"))
    assert isinstance(rig.answer(2, m.DescribeTopic("t")), m.TopicInfo)
    assert rig.answer(2, w.DescribeAccess()).code == Unauthorized.code
    enter_by(rig, 3, own_token(rig, "bob", roles=()))
    rig.answer(3, m.Hello("x"))
    assert rig.answer(3, m.DescribeTopic("t")).code == UnknownTopic.code


def test_no_token_gives_more_than_its_user_has(rig: Any) -> None:
    """A role that an issuer invents, or that the user lost, gives nothing."""
    rig.answer(1, trust())
    enter_by(rig, 2, token_of(now(rig), roles=("admin", "default.ann"), topics=(T,)))
    rig.answer(2, m.Hello("x"))
    assert isinstance(rig.answer(2, m.DescribeTopic("t")), m.TopicInfo)
    assert rig.answer(2, w.DescribeAccess()).code == Unauthorized.code
    catalog_of(rig.shard).access.apply(RoleDeleted("default.ann"))
    assert rig.answer(2, m.DescribeTopic("t")).code == UnknownTopic.code


# -- what is issued ------------------------------------------------------------------------------


def test_a_user_gets_a_token_of_its_own_and_a_token_gets_none(rig: Any) -> None:
    rig.answer(1, t.CreateTokenKey("k1"))
    issued = rig.answer(1, t.IssueToken(60, "job"))
    assert issued.ends == int(now(rig)) + 60
    assert enter_by(rig, 2, issued.token).user == ROOT
    rig.answer(2, m.Hello("x"))
    again = rig.answer(2, t.IssueToken(60))
    assert again.code == BadRequest.code, "else a token would go on for ever"
    rig.replies[3] = []

    rig.handle(ev.Opened(3, catalog_of(rig.shard).access.user(ROOT).principal, 1))
    assert rig.answer(3, t.IssueToken(60)).code == BadRequest.code, "it may have come by a token"


def test_the_owner_of_a_partition_goes_by_the_token_as_well(rig: Any) -> None:
    """The shard that let it in passes on by which token, and when."""
    rig.answer(1, t.CreateTokenKey("k1"))
    access = catalog_of(rig.shard).access
    principal, limits = access.user(ANN).principal, TokenLimits(topics=(T,))
    known = SessionToken(OWN, "k1", "id", limits)

    def passed(session: int, token: SessionToken, admitted_at: int) -> None:
        rig.replies[session] = []
        rig.handle(ev.Opened(session, principal, 1, "", admitted_at, token))

    passed(3, known, access.version)
    assert isinstance(rig.answer(3, m.DescribeTopic("t")), m.TopicInfo)
    assert rig.answer(3, m.DescribeTopic("u")).code == UnknownTopic.code, "its token has t alone"
    passed(4, known._replace(key="k2"), access.version)
    passed(5, known, 1)
    assert hung_up(rig) == [4, 5], "by a key that is not there, or was not there then"


def test_what_can_be_no_token_is_refused(rig: Any) -> None:
    assert "weir token key add" in rig.answer(1, t.IssueToken(60)).message
    rig.answer(1, t.CreateTokenKey("k1"))
    assert rig.answer(1, t.IssueTokenFor("nobody", 60)).code == UnknownUser.code
    assert rig.answer(1, t.IssueTokenFor("ann", 60, roles=("admin",))).code == UnknownRole.code
    wide = tuple("t" * 100 + str(number) for number in range(100))
    assert "bytes" in rig.answer(1, t.IssueTokenFor("ann", 60, topics=wide)).message


def test_a_token_is_worth_nothing_once_the_password_is_another(rig: Any) -> None:
    """Whoever had it issued may have known the password of before."""
    rig.answer(1, t.CreateTokenKey("k1"))
    token = own_token(rig)
    assert enter_by(rig, 2, token).done
    rig.answer(1, w.ChangeUser("password", "ann", verifier_of("other")))
    assert 2 in hung_up(rig)
    assert enter_by(rig, 3, token).code == NotAuthenticated.code
    assert enter_by(rig, 4, own_token(rig)).done


def test_a_namesake_gets_nothing_by_a_token_of_the_one_before(rig: Any) -> None:
    rig.answer(1, t.CreateTokenKey("k1"))
    token = own_token(rig)
    access = catalog_of(rig.shard).access
    access.apply(UserRevoked(ANN))
    assert enter_by(rig, 2, token).code == NotAuthenticated.code
    access.apply(UserCreated(ANN, verifier_of("x")))
    assert enter_by(rig, 3, token).code == NotAuthenticated.code


def test_a_token_is_of_one_user_by_its_number(rig: Any) -> None:
    """Whatever access version it names: a registry that was restored may count anew."""
    rig.answer(1, t.CreateTokenKey("k1"))
    access = catalog_of(rig.shard).access
    seed = RING.unwrap(access.issuers.find(OWN).keys[0].wrapped, "token key k1")
    number, key = access.user(ANN).number, PrivateKey.from_seed(seed)
    for session, given in ((2, number), (3, number + 1)):
        said = TokenLimits(number=given, version=1_000_000)
        claims = Claims(OWN, ANN, (OWN,), now(rig) + 60, 0, now(rig), "", said)
        reply = enter_by(rig, session, issue_token(key, "k1", claims))
        assert isinstance(reply, m.Refusal) == (given != number)


def test_a_set_takes_no_token_of_another(rig: Any) -> None:
    """Nor one that names this set and that another key of the same id signed."""
    rig.answer(1, t.CreateTokenKey("k1"))
    user = catalog_of(rig.shard).access.user(ANN)
    limits_ = TokenLimits(number=user.number, version=99)
    for issuer in (OWN, "weir://1"):
        claims = Claims(issuer, ANN, (issuer,), now(rig) + 60, 0, now(rig), "", limits_)
        token = issue_token(IDP_KEY, "k1", claims)
        assert enter_by(rig, 2, token).code == NotAuthenticated.code


# -- keys ----------------------------------------------------------------------------------------


def test_keys_rotate(rig: Any) -> None:
    rig.answer(1, t.CreateTokenKey("k1"))
    old = own_token(rig)
    enter_by(rig, 2, old)
    assert isinstance(rig.answer(1, t.CreateTokenKey("k1")), w.AccessChanged), "asked again"
    rig.answer(1, t.CreateTokenKey("k2"))
    new = own_token(rig)
    assert enter_by(rig, 3, old).done
    assert enter_by(rig, 4, new).done
    assert hung_up(rig) == []
    rig.answer(1, t.RemoveTokenKey("", "k1"))
    assert sorted(hung_up(rig)) == [2, 3], "they came by the key that is gone"
    assert enter_by(rig, 5, old).code == NotAuthenticated.code
    assert enter_by(rig, 6, own_token(rig)).done
    keys = rig.answer(1, t.ListTokenKeys())
    assert [(one.issuer, one.key, one.signs) for one in keys.keys] == [(OWN, "k2", True)]
    assert keys.opens
    rig.answer(1, t.RemoveTokenKey("", ""))
    assert rig.answer(1, t.ListTokenKeys()).keys == []
    assert isinstance(rig.answer(1, t.RemoveTokenKey("", "")), w.AccessChanged), "asked again"


def test_a_file_of_keys_replaces_those_of_its_issuer(rig: Any) -> None:
    rig.answer(1, trust())
    enter_by(rig, 2, token_of(now(rig)))
    other = PrivateKey.from_seed(b"y" * 32)
    rig.answer(1, trust(keys=(IDP_KEY.public("idp"), other.public("two"))))
    assert hung_up(rig) == [], "its key is there as it was"
    assert enter_by(rig, 3, token_of(now(rig), key=other, kid="two")).done
    rig.answer(1, trust(keys=(other.public("idp"),)))
    assert sorted(hung_up(rig)) == [2, 3], "another key of the same id is another key"


@pytest.mark.parametrize(
    "other", [{"audience": "else"}, {"namespace": "shop"}], ids=lambda one: str(*one)
)
def test_who_an_issuer_no_longer_speaks_for_ends(rig: Any, other: dict[str, Any]) -> None:
    rig.answer(1, trust())
    enter_by(rig, 2, token_of(now(rig)))
    rig.answer(1, trust(**other))
    assert hung_up(rig) == [2]


def test_what_waits_is_told_that_its_token_is_not_taken_any_more(rig: Any) -> None:
    rig.answer(1, trust())
    enter_by(rig, 2, token_of(now(rig)))
    rig.answer(2, m.Hello("x"))
    address = rig.answer(2, m.DescribeTopic("t")).addresses[0]
    number = rig.ask(2, m.Fetch(address, 0, 1, wait_ms=5_000))
    rig.answer(1, t.RemoveTokenKey(IDP))
    told = dict(rig.replies[2])[number]
    assert (told.code, "token" in told.message) == (AccessRevoked.code, True)


def test_limits_of_issuers_and_keys(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TOKEN_ISSUERS_MAX", 2)
    monkeypatch.setattr(limits, "TOKEN_KEYS_MAX", 2)
    for name in ("a", "b"):
        assert isinstance(rig.answer(1, trust(issuer=name)), w.AccessChanged)
    assert "at most 2 issuers" in rig.answer(1, trust(issuer="c")).message
    three = tuple(IDP_KEY.public(id) for id in "xyz")
    assert "at most 2 keys" in rig.answer(1, trust(issuer="a", keys=three)).message
    for bad in ({"keys": ()}, {"audience": ""}, {"namespace": "a b"}, {"issuer": OWN}):
        assert isinstance(rig.answer(1, trust(**bad)), m.Refusal), bad


def test_keys_need_their_level_and_a_key_file(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(secret_bytes=random.Random(7).randbytes)
    rig.connect(1)
    assert "access.key_file" in rig.answer(1, t.CreateTokenKey("k")).message
    rig = make_rig(secret_bytes=random.Random(7).randbytes, key_ring=RING, level=2)
    rig.connect(1)
    for request in (t.CreateTokenKey("k"), trust()):
        assert rig.answer(1, request).code == LevelTooLow.code


def test_no_checkpoint_holds_a_key_that_signs(rig: Any) -> None:
    rig.answer(1, t.CreateTokenKey("k1"))
    rig.answer(1, trust())

    catalog = catalog_of(rig.shard)
    data = msgspec.msgpack.encode(catalog.encode())
    own = catalog.access.issuers.find(OWN)
    seed = RING.unwrap(own.keys[0].wrapped, "token key k1")
    assert seed not in data
    back = Catalog.decode(msgspec.msgpack.decode(data, strict=False))
    assert list(back.access.issuers) == list(catalog.access.issuers)
    with pytest.raises(Exception, match="wrapped for something else"):
        RING.unwrap(own.keys[0].wrapped, "token key k2")


def test_a_registry_without_issuers_has_the_bytes_of_before(rig: Any) -> None:
    access = catalog_of(rig.shard).access
    assert len(access.encode()) == 6
    rig.answer(1, trust())
    assert len(access.encode()) == 7
    access.apply(UserPasswordSet(ANN, verifier_of("z")))
    rig.answer(1, t.RemoveTokenKey(IDP))
    assert len(access.encode()) == 6


def test_another_key_wraps_a_key_that_signs_and_it_is_the_same_key(
    make_rig: Callable[..., Any],
) -> None:
    old, new = bytes(range(32)), b"n" * 32
    rig = closed(make_rig(secret_bytes=random.Random(7).randbytes, key_ring=KeyRing([old])))
    rig.answer(1, t.CreateTokenKey("k1"))
    token = own_token(rig)
    stored = catalog_of(rig.shard).encode()
    rig = closed(make_rig(secret_bytes=random.Random(8).randbytes, key_ring=KeyRing([new, old])))
    catalog_of(rig.shard).access.issuers = Catalog.decode(
        msgspec.msgpack.decode(msgspec.msgpack.encode(stored), strict=False)
    ).access.issuers
    rig.answer(1, trust())  # an entry: the key is there since a version that was reached
    assert enter_by(rig, 2, token).done
    while rig.answer(1, w.RewrapSecrets()).left:
        pass
    assert hung_up(rig) == []
    (key,) = catalog_of(rig.shard).access.issuers.find(OWN).keys
    assert KeyRing([new]).unwrap(key.wrapped, "token key k1")
    assert enter_by(rig, 3, own_token(rig)).done


# -- how sessions end ----------------------------------------------------------------------------


def pass_seconds(rig: Any, seconds: float) -> None:
    rig.time.pass_ms(int(seconds * 1_000))
    rig.handle(ev.Ticked())


def idp(rig: Any, seconds: float = 600, id: str = "job", **more: Any) -> bytes:
    return token_of(now(rig), seconds=seconds, token_id=id, **more)


def test_a_session_ends_with_its_token(rig: Any) -> None:
    rig.answer(1, trust())
    enter_by(rig, 2, idp(rig, 60, id=""))
    rig.answer(2, m.Hello("x"))
    address = rig.answer(2, m.DescribeTopic("t")).addresses[0]
    pass_seconds(rig, 60 + LEEWAY_SECONDS - 1)
    number = rig.ask(2, m.Fetch(address, 0, 1, wait_ms=5_000))
    assert hung_up(rig) == []
    pass_seconds(rig, 1)
    assert hung_up(rig) == [2]
    told = dict(rig.replies[2])[number]
    assert (told.code, "expired" in told.message) == (AccessRevoked.code, True)
    assert 1 in sessions_of(rig.shard), "who came by a password stays"


def test_a_clock_that_is_set_moves_no_end(rig: Any) -> None:
    rig.answer(1, trust())
    enter_by(rig, 2, idp(rig, 60, id=""))
    rig.answer(2, m.Hello("x"))
    rig.time.wall -= 3_600_000
    pass_seconds(rig, 60 + LEEWAY_SECONDS)
    assert hung_up(rig) == [2]


def test_a_session_goes_on_by_another_token(rig: Any) -> None:
    rig.answer(1, trust())
    enter_by(rig, 2, idp(rig, 60, id=""))
    rig.answer(2, m.Hello("x"))
    pass_seconds(rig, 50)
    step = rig.answer(2, w.Login(BEARER, idp(rig, 60, id="")))
    assert (step.done, step.message) == (True, b"60")
    pass_seconds(rig, 60)
    assert hung_up(rig) == []
    pass_seconds(rig, LEEWAY_SECONDS)
    assert hung_up(rig) == [2]


def test_a_session_goes_on_by_no_other_token(rig: Any) -> None:
    """Of another user, for more or less, or one that is not valid: the session stays as it was."""
    give(catalog_of(rig.shard).access, "default/bob")
    rig.answer(1, trust())
    enter_by(rig, 2, idp(rig, 60, topics=(T,)))
    rig.answer(2, m.Hello("x"))
    for token in (
        idp(rig, user="bob", topics=(T,)), idp(rig), idp(rig, topics=(U,)), b"x",
        idp(rig, topics=(T,), roles=("admin",)), idp(rig, topics=(T,), issuer="https://other"),
    ):  # fmt: skip
        reply = rig.answer(2, w.Login(BEARER, token))
        assert (reply.code, reply.message) == (NotAuthenticated.code, limits.NOBODY)
    assert hung_up(rig) == []
    client = ScramClient("ann", encode_nonce(b"n" * 18))
    assert "before hello" in rig.answer(2, w.Login(MECHANISM, client.first)).message
    pass_seconds(rig, 60 + LEEWAY_SECONDS)
    assert hung_up(rig) == [2]


def test_a_renewal_extends_the_sessions_that_came_with_its_predecessor(rig: Any) -> None:
    """A driver renews, and its executors, which hold the first token alone, go on."""
    rig.answer(1, trust())
    for session, id in ((2, "job"), (3, "job"), (4, "other"), (5, "")):
        enter_by(rig, session, idp(rig, 60, id))
        rig.answer(session, m.Hello("x"))
    pass_seconds(rig, 50)
    assert isinstance(rig.answer(2, t.RenewToken(idp(rig, 100))), w.AccessChanged)
    pass_seconds(rig, 10 + LEEWAY_SECONDS)
    assert sorted(hung_up(rig)) == [4, 5]
    pass_seconds(rig, 89)
    pass_seconds(rig, 1)
    assert sorted(hung_up(rig)) == [2, 3, 4, 5]


def test_a_renewal_renews_only_what_is_its_own(rig: Any) -> None:
    give(catalog_of(rig.shard).access, "default/bob")
    rig.answer(1, trust())
    enter_by(rig, 2, idp(rig, 60))
    enter_by(rig, 3, idp(rig, 60, user="bob"))
    for session in (2, 3):
        rig.answer(session, m.Hello("x"))
    assert rig.answer(2, t.RenewToken(idp(rig, user="bob"))).code == NotAuthenticated.code
    assert rig.answer(2, t.RenewToken(b"x")).code == NotAuthenticated.code
    assert "without an id" in rig.answer(2, t.RenewToken(idp(rig, id=""))).message
    rig.answer(2, t.RenewToken(idp(rig, 500)))
    pass_seconds(rig, 60 + LEEWAY_SECONDS)
    assert hung_up(rig) == [3], "bob's token has the same id"


def test_renewals_are_forgotten_when_they_end(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TOKEN_RENEWALS_MAX", 2)
    rig.answer(1, trust())
    enter_by(rig, 2, idp(rig, 10_000))
    rig.answer(2, m.Hello("x"))
    access = catalog_of(rig.shard).access
    version = access.version
    for id in ("a", "b", "a"):
        assert isinstance(rig.answer(2, t.RenewToken(idp(rig, 60, id))), w.AccessChanged)
    assert "2 tokens are renewed" in rig.answer(2, t.RenewToken(idp(rig, 60, "c"))).message
    assert access.version == version, "what sessions were allowed is not looked up anew"
    back = Catalog.decode(
        msgspec.msgpack.decode(msgspec.msgpack.encode(catalog_of(rig.shard).encode()), strict=False)
    )
    who = principal_of(rig, 2)
    assert back.access.issuers.renewed_until(who, IDP, "a") == int(now(rig)) + 60
    pass_seconds(rig, 61)
    assert isinstance(rig.answer(2, t.RenewToken(idp(rig, 60, "c"))), w.AccessChanged)
    assert not access.issuers.renewed_until(who, IDP, "a")


def test_a_renewed_session_ends_with_its_user_or_key_all_the_same(rig: Any) -> None:
    rig.answer(1, trust())
    enter_by(rig, 2, idp(rig))
    rig.answer(2, m.Hello("x"))
    rig.answer(1, t.CreateTokenKey("k1"))
    rig.answer(2, w.Login(BEARER, own_token(rig)))
    rig.answer(1, t.RemoveTokenKey(IDP))
    assert hung_up(rig) == [], "it goes on by the other one"
    rig.answer(1, t.RemoveTokenKey("", "k1"))
    assert hung_up(rig) == [2]
