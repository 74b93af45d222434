"""A relay of a closed core: users log in through it, and read what the core lets them read."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

import weir
from rigs.certificates import SYSTEM, TestCa, node_running
from rigs.clients import pool_of
from rigs.consuming import take
from rigs.relay_nodes import fill, frame, make_small, offsets, play, relay, spoken, started_relay
from rigs.tokens import IDP, IDP_KEY, token_of
from weir.access.tokens import write_jwks
from weir.client.access import AccessRule
from weir.client.arguments import parse_url
from weir.client.client import Client, connect
from weir.client.connection.credentials import Credentials, TokenCredentials
from weir.client.connection.network_client import NetworkClient
from weir.errors import (
    AccessRevoked,
    Disconnected,
    NotAuthenticated,
    Unauthorized,
    Unavailable,
    UnknownTopic,
    WeirError,
)
from weir.model.ids import LIMIT_MAX, Address, partition_of, topic_of
from weir.protocol.client import messages as m
from weir.relay.messages import Answer, Pull, decode_message, encode_message
from weir.relay.ports import Event
from weir.relay_node import sessions
from weir.relay_node.folder import BadRelayFolder
from weir.relay_node.host import RelayConfig
from weir.server.network import certificate_files
from weir.server.network.certificate_files import states
from weir.testing.memory_node import Node, node
from weir.tls.authority import Issued, opened
from weir.tls.files import ServerFiles
from weir.topology.sets import SetNode, SetRow, TopicTags, Topology

RELAY = Credentials("relay", "relay's")
GONE = (AccessRevoked, NotAuthenticated, UnknownTopic, Disconnected)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)
    monkeypatch.setattr(sessions, "GRACE_SECONDS", 0.05)
    for name in [name for name in os.environ if name.startswith("WEIR_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def core() -> Iterator[Node]:
    """Return a closed node with topics t and u: `relay` reads both, ann reads t, bob nothing."""
    with node() as found:

        async def found_users() -> None:
            for topic in ("t", "u"):
                await fill(found, 12, topic=topic)
            async with connect(found.url) as client:
                access = client.access
                await access.create_user("root", "rr", ["admin"])
                for role, topics in (("all", ("t", "u")), ("some", ("t",)), ("none", ())):
                    rules = [AccessRule(("read", "describe"), "topic", one) for one in topics]
                    rules = rules or [AccessRule(("read",), "topic", "other")]
                    await access.change_rules(role, rules)
                await access.create_user("relay", "relay's", ["all"])
                await access.create_user("ann", "aa", ["some"])
                await access.create_user("bob", "bb", ["none"])
                await access.trust_issuer(
                    IDP, "weir", "default", write_jwks([IDP_KEY.public("idp")])
                )
            async with as_user(found.url, "root", "rr") as client:
                await client.access.set_mode("closed")

        asyncio.run(found_users())
        yield found


def as_user(url: str, user: str, password: str, **more: Any) -> Any:
    return connect(url.replace("//", f"//{user}@"), password=password, **more)


@asynccontextmanager
async def network_of(url: str, user: str, password: str) -> AsyncIterator[NetworkClient]:
    """Connect as a client does that sends its requests itself."""
    network = NetworkClient(
        parse_url(url), name="test", retry=weir.Backoff(), request_timeout=2.0,
        random=Random(1), credentials=Credentials(user, password),
    )  # fmt: skip
    await network.start()
    try:
        yield network
    finally:
        await network.close()


async def values(client: Client, topic: str = "t", **options: Any) -> list[bytes]:
    options = {"start": "earliest", "follow": False, **options}
    async with client.reader(topic, **options) as reader:
        return [bytes(one.value) async for one in reader]


async def for_ever(client: Client) -> None:
    while True:
        await values(client)
        await asyncio.sleep(0.02)


async def here(client: Client, topic: str = "t", end: int = 12) -> None:
    """Wait until a relay has so many messages."""
    while True:
        try:
            if sum(part.end for part in await client.parts(topic)) >= end:
                return
        except (UnknownTopic, Unavailable):
            pass
        await asyncio.sleep(0.02)


def test_users_log_in_through_a_relay_and_read_what_they_may(core: Node, tmp_path: Path) -> None:
    async def work() -> None:
        async with relay(core, tmp_path, credentials=RELAY) as url:
            async with as_user(url, "ann", "aa") as ann:
                await here(ann)
                assert sorted(await values(ann)) == sorted(b"%d" % n for n in range(12))
                assert [one.full_name for one in await ann.topics()] == ["t"]
                with pytest.raises(UnknownTopic, match="no topic 'u' is relayed here"):
                    await ann.describe("u")
                with pytest.raises(UnknownTopic, match="no topic 'v' is relayed here"):
                    await ann.describe("v")
                with pytest.raises(Unauthorized, match="list"):
                    await ann.topology.describe_relay()
            async with as_user(url, "root", "rr") as root:
                await here(root, "u")
                assert {one.full_name for one in await root.topics()} == {"t", "u"}
                told = await root.topology.describe_relay()
                assert {one.name for one in told.topics} == {"t", "u"}
                addresses = (await root.describe("u")).addresses
            async with as_user(url, "bob", "bb") as bob:
                assert await bob.topics() == []
                with pytest.raises(UnknownTopic):
                    await values(bob)
            with pytest.raises(NotAuthenticated):
                async with as_user(url, "ann", "wrong"):
                    pass
            with pytest.raises(NotAuthenticated, match="serves users of its core alone"):
                async with connect(url):
                    pass
            assert addresses

    play(work)


def token(user: str, **limits: Any) -> str:
    return token_of(time.time(), user, **limits).decode()


def test_a_token_is_passed_on_with_its_limits(core: Node, tmp_path: Path) -> None:
    async def work() -> None:
        async with relay(core, tmp_path, credentials=TokenCredentials(token("relay"))) as url:
            async with connect(url, token=token("ann")) as ann:
                await here(ann)
                assert len(await values(ann)) == 12
            async with connect(url, token=token("relay", topics=("default/t",))) as limited:
                await here(limited)
                with pytest.raises(WeirError):
                    await limited.describe("u")
            with pytest.raises(NotAuthenticated):
                async with connect(url, token=token("ann")[:-6] + "AAAAAA"):
                    pass

    play(work)


@pytest.mark.parametrize("how", ["revoked", "ruled out"])
def test_a_user_that_may_read_no_more_gets_nothing_more(
    core: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(sessions, "RECHECK_SECONDS", 0.05)

    async def work() -> None:
        async with (
            relay(core, tmp_path, credentials=RELAY) as url,
            as_user(url, "ann", "aa", request_timeout=2.0) as ann,
        ):
            await here(ann)
            async with as_user(core.url, "root", "rr") as root:
                if how == "revoked":
                    await root.access.revoke_user("ann")
                else:
                    rule = AccessRule(("read", "describe"), "topic", "t")
                    await root.access.change_rules("some", [], [rule])
            with pytest.raises(GONE):
                await for_ever(ann)

    play(work)


def test_what_waits_in_an_open_set_ends_when_it_is_closed(core: Node, tmp_path: Path) -> None:
    async def work() -> None:
        async with as_user(core.url, "root", "rr") as root:
            await root.access.set_mode("open")
            async with relay(core, tmp_path, credentials=RELAY) as url:
                async with as_user(url, "bob", "bb") as bob:
                    await here(bob)
                    addresses = (await bob.describe("t")).addresses
                async with network_of(url, "bob", "bb") as network:
                    asked = m.Fetch(addresses[0], 12, 1 << 20, 60_000)
                    waiting = asyncio.ensure_future(
                        network.request(asked, m.Fetched, wait=60.0, again=False)
                    )
                    await network.request(m.DescribeTopic("t"), m.TopicInfo)  # behind the fetch
                    await root.access.set_mode("closed")
                    with pytest.raises((Unauthorized, *GONE)):
                        await asyncio.wait_for(waiting, 10)

    play(work)


def test_without_the_core_sessions_go_on_for_a_while_and_nobody_is_let_in(
    core: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "RECHECK_SECONDS", 0.0)
    monkeypatch.setattr(sessions, "_TIMEOUT", 0.3)

    async def work() -> None:
        async with relay(core, tmp_path, credentials=RELAY) as url:
            async with as_user(url, "ann", "aa") as ann:
                await here(ann)
                addresses = (await ann.describe("t")).addresses
            async with network_of(url, "ann", "aa") as network:
                fetches = [m.Fetch(one, 0, 1 << 20, equal_stamps=True) for one in addresses]
                for is_away in (False, True):
                    read = [await network.request(one, m.Fetched) for one in fetches]
                    assert sum(one.next_offset for one in read) == 12
                    asked = m.AskBarriers(topic_of(addresses[0].group), 1)
                    await network.request(asked, m.Barriers)  # of the core, or by marks that came
                    if not is_away:
                        await asyncio.to_thread(core.crash)
                with pytest.raises((Unavailable, Disconnected)):
                    async with as_user(url, "ann", "aa", request_timeout=0.5):
                        pass
                monkeypatch.setattr(sessions, "CUTOFF_SECONDS", 0.0)
                with pytest.raises((Unavailable, Disconnected)):
                    await network.request(fetches[0], m.Fetched)

    play(work)


def test_what_a_user_may_read_is_served_to_nobody_without_a_login(
    core: Node, tmp_path: Path
) -> None:
    async def work() -> None:
        async with relay(core, tmp_path, credentials=RELAY) as url:
            async with as_user(url, "root", "rr") as root:
                await here(root)
                (address, *_) = (await root.describe("t")).addresses
            asked: list[m.Request] = [
                m.Hello("test"), m.ListTopics("", ""), m.DescribeTopic("t"),
                m.Fetch(address, 0, 1 << 20), m.AskRelay(address, b""), m.AskBarriers(1, 1),
            ]  # fmt: skip
            replies = await spoken(url, *map(frame, asked))
            assert len(replies) == len(asked)
            assert all(isinstance(one, m.Refusal) for one in replies)
        with pytest.raises(BadRelayFolder, match="holds messages that only a user may read"):
            async with relay(core, tmp_path):  # as nobody
                pass

    play(work)


def test_a_relay_serves_tls_with_the_newest_certificate(
    core: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate_files, "_LOOK_SECONDS", 0.02)
    ca = TestCa(tmp_path / "ca", system=1)
    where, served = tmp_path / "relay", (tmp_path / "served.pem", tmp_path / "served.key")

    def copy(issued: Issued) -> Issued:
        for name, file in zip((issued.certificate, issued.key), served, strict=True):
            shutil.copy(name, file)
        return issued

    async def until(serial: str = "", problem: str = "") -> None:
        while (state := states(where)[0]).serial != serial or problem not in state.problem:
            await asyncio.sleep(0.02)

    async def work() -> None:
        issued = copy(ca.issue("node/9", "127.0.0.1", "localhost"))
        tls = ServerFiles(*map(str, served), ca.bundle)
        async with relay(core, where, credentials=RELAY, node=9, tls=tls) as url:
            secure = url.replace("weir:", "weirs:") + f"?ca={ca.bundle}"
            async with as_user(secure, "ann", "aa") as ann:
                await here(ann)
                assert len(await values(ann)) == 12
                with pytest.raises(WeirError):
                    async with as_user(url, "ann", "aa", request_timeout=0.5):
                        pass
                served[1].write_text("half a key")
                await until(issued.serial, "cannot be read")
                with opened(ca.folder) as authority:
                    newer = copy(authority.renew("node-9"))
                await until(newer.serial)
                assert len(await values(ann)) == 12, "who is connected goes on"
            for host in ("127.0.0.1", "localhost"):  # an address is not named in a handshake
                async with as_user(secure.replace("127.0.0.1", host), "ann", "aa") as ann:
                    home = pool_of(ann).home
                    assert home is not None
                    assert home.peer is not None
                    assert home.peer.serial == newer.serial

    play(work)


def test_a_relay_logs_in_at_the_one_above_it_by_tls(
    core: Node, tmp_path: Path, told: list[Event]
) -> None:
    ca = TestCa(tmp_path / "ca", system=1)
    tls = ca.files(ca.issue("node/9"))

    async def work() -> None:
        async with started_relay(
            core, tmp_path / "above", credentials=RELAY, node=9, tls=tls
        ) as above:
            uppers = (tuple(parse_url(ca.url(above.port))),)
            async with (
                relay(core, tmp_path / "below", credentials=RELAY, node=8, uppers=uppers),
                as_user(core.url, "root", "rr") as root,
            ):
                while not offsets(told):
                    await root.publish("t", b"12")
                    await asyncio.sleep(0.02)

    play(work)


@pytest.mark.parametrize("whose", ["its own", "the user's"])
def test_what_was_revoked_reads_no_more_at_a_relay_that_came_by_a_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """The certificate of the relay is revoked, by which it pulls, or a user that reads there."""
    monkeypatch.setattr(certificate_files, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr("weir.server.disk.node_folder.new_system", lambda: SYSTEM)
    ca = TestCa(tmp_path / "ca")
    files = ca.files(ca.issue("node/1"), str(ca.folder / "revoked.txt"))
    issued = ca.issue("user/default/relay")
    certificate, key = (shutil.copy(one, tmp_path) for one in (issued.certificate, issued.key))
    of_relay = issued._replace(certificate=Path(certificate), key=Path(key))

    async def work() -> None:
        async with node_running(tmp_path / "node", files) as port:
            core = SimpleNamespace(url=ca.url(port, of_relay))
            async with connect(ca.url(port)) as client:
                await client.create_topic("t")
                await client.publish("t", b"0")
                access = client.access
                rules = [AccessRule(("read", "describe"), "topic", "t")]
                await access.change_rules("some", rules)
                for user, role in (("root", "admin"), ("relay", "some"), ("ann", "some")):
                    await access.create_user(user, user, [role])
            async with as_user(ca.url(port), "root", "root") as root:
                await root.access.set_mode("closed")
                async with (
                    relay(core, tmp_path / "relay") as url,  # type: ignore[arg-type]
                    as_user(url, "ann", "ann", request_timeout=2.0) as ann,
                ):
                    await here(ann, end=1)
                    assert await values(ann) == [b"0"]
                    if whose == "its own":
                        with opened(ca.folder) as authority:
                            authority.revoke("user-relay@default")
                    else:
                        await root.access.revoke_user("ann")
                    with pytest.raises((Unauthorized, *GONE)):
                        await for_ever(ann)

    play(work)


def test_a_revoked_user_is_let_go_at_once_and_not_once_the_core_might_be_away(
    core: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "GRACE_SECONDS", 25.0)

    async def work() -> None:
        async with (
            relay(core, tmp_path, credentials=RELAY) as url,
            as_user(url, "ann", "aa", request_timeout=2.0) as ann,
        ):
            await here(ann)
            assert len(await values(ann)) == 12  # so it is known for 5 s that she may
            began = time.monotonic()
            async with as_user(core.url, "root", "rr") as root:
                await root.access.revoke_user("ann")
            with pytest.raises(GONE):
                await for_ever(ann)
            assert time.monotonic() - began < sessions.RECHECK_SECONDS - 1

    play(work)


class Away:
    """A core to which there is a connection, and which answers nothing."""

    is_reached = True

    def __init__(self) -> None:
        self.asked: list[float] = []

    async def answers(self, within: float) -> bool:
        self.asked.append(within)
        return False


def test_a_core_that_does_not_answer_has_a_moment_to_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        core, over = Away(), asyncio.Event()
        over.set()
        config = RelayConfig([("127.0.0.1", 1)], credentials=RELAY)
        session = sessions.ReaderSession(config, 1, core, Way())
        monkeypatch.setattr(session, "_upstream", SimpleNamespace(over=over))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.ended(), 0.1)
        assert core.asked == [sessions.GRACE_SECONDS]

    monkeypatch.setattr(sessions, "GRACE_SECONDS", 5.0)
    asyncio.run(work())


class Way:
    """How a client came."""

    is_encrypted, is_loopback = False, False


def test_a_password_is_taken_by_tls_alone() -> None:
    session = sessions.ReaderSession(None, 1, None, Way())  # type: ignore[arg-type]
    with pytest.raises(NotAuthenticated, match="need TLS"):
        asyncio.run(session.log_in(sessions.Login("SCRAM-SHA-256", b"")))


def test_what_the_core_refuses_counts_at_once_and_its_absence_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[Any] = [
        m.Barriers(1, []),
        Unavailable("away"),
        Unauthorized("no"),
        Unavailable(""),
    ]

    async def ask(_: object, request: m.Request) -> m.Reply:
        assert request == m.AskBarriers(1, 1, 1)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return cast(m.Reply, answer)

    async def work() -> None:
        config = RelayConfig([("127.0.0.1", 1)], credentials=RELAY)
        session = sessions.ReaderSession(config, 1, None, Way())  # type: ignore[arg-type]
        session.user = "default/ann"
        await session.check(1)
        await session.check(1)  # the core is away
        with pytest.raises(Unauthorized):
            await session.check(1)
        with pytest.raises(Unavailable):  # what it said before counts no more
            await session.check(1)

    monkeypatch.setattr(sessions, "RECHECK_SECONDS", 0.0)
    monkeypatch.setattr(sessions.ReaderSession, "_ask", ask)
    asyncio.run(work())


class FakeCore:
    """A connection to a core that refuses all, or does not answer."""

    def __init__(self, refusal: WeirError | None) -> None:
        self._refusal = refusal
        self.is_open = True

    async def request(self, request: m.Request, timeout: float) -> m.Reply:
        if self._refusal is None:
            await asyncio.Event().wait()
        raise self._refusal or AssertionError

    def abort(self) -> None:
        self.is_open = False


class NearWay:
    is_encrypted, is_loopback = True, True


def session_at(core: FakeCore, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[object]]:
    """Return a session whose connections to the core are this one, and what was dialled."""
    dialled: list[object] = []

    async def dial(_: object) -> FakeCore:
        dialled.append(core)
        await asyncio.sleep(0)
        return core

    monkeypatch.setattr(sessions.ReaderSession, "_dial", dial)
    config = RelayConfig([("127.0.0.1", 1)], credentials=RELAY)
    return sessions.ReaderSession(config, 1, None, NearWay()), dialled  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("refusal", "user", "goes_on"),
    [
        (Unavailable("no news of the registry"), "default/ann", True),
        (NotAuthenticated("no such token"), "default/ann", True),
        (Unavailable("no news of the registry"), "", True),
        (NotAuthenticated("no such token"), "", False),
    ],
)
def test_a_refused_token_ends_the_session_of_nobody_who_is_logged_in(
    monkeypatch: pytest.MonkeyPatch, refusal: WeirError, user: str, goes_on: bool
) -> None:
    core = FakeCore(refusal)
    session, _ = session_at(core, monkeypatch)
    session.user = user
    with pytest.raises(type(refusal)):
        asyncio.run(session.log_in(sessions.Login("BEARER", b"x")))
    assert core.is_open == goes_on


def test_two_first_steps_of_a_login_dial_once(monkeypatch: pytest.MonkeyPatch) -> None:
    session, dialled = session_at(FakeCore(None), monkeypatch)

    async def work() -> None:
        steps = [session.log_in(sessions.Login("SCRAM-SHA-256", b"")) for _ in range(2)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*steps), 0.05)

    asyncio.run(work())
    assert len(dialled) == 1


def pull_of(system: int, address: Address, of: tuple[int, int], *tags: str) -> m.AskRelay:
    """Return a pull of a node of a set, of these tags; without any, of all messages."""
    partition = topic_of(address.group), partition_of(address.group)
    pull = Pull(system, *of, *partition, 1, 0, 0, 1, tags or None, 1 << 20, 0, LIMIT_MAX)
    return m.AskRelay(address, b"".join(encode_message(pull)))


def test_users_consume_through_a_relay_what_they_may_consume(core: Node, tmp_path: Path) -> None:
    async def work() -> None:
        async with as_user(core.url, "root", "rr") as root:
            rules = [
                AccessRule(("consume", "describe"), "topic", "t"),
                AccessRule(("consume",), "cluster", "t:hers"),
            ]
            await root.access.change_rules("crew", rules[:1])
            await root.access.change_rules(
                "hers", [AccessRule(("describe",), "topic", "t"), rules[1]]
            )
            await root.access.create_user("cat", "cc", ["crew"])
            await root.access.create_user("eve", "ee", ["some", "hers"])
        async with (
            relay(core, tmp_path, credentials=RELAY) as url,
            as_user(url, "cat", "cc") as cat,
            as_user(url, "eve", "ee") as eve,
        ):
            await here(cat)
            for client, cluster in ((cat, "his"), (eve, "hers")):
                async with client.consumer("t", cluster=cluster) as consumer:
                    found = [int((await take(consumer)).value) for _ in range(12)]
                assert sorted(found) == list(range(12))
            with pytest.raises(Unauthorized):
                async with eve.consumer("t", cluster="his") as consumer:
                    await anext(consumer)

    play(work)


def test_a_relay_below_pulls_as_who_may_read_and_not_as_who_may_consume(
    core: Node, tmp_path: Path
) -> None:
    async def work() -> None:
        async with as_user(core.url, "root", "rr") as root:
            rule = AccessRule(("consume", "describe"), "topic", "t")
            await root.access.change_rules("none", [rule])
        async with started_relay(core, tmp_path, credentials=RELAY) as started:
            url = f"weir://{started.host}:{started.port}"
            async with as_user(url, "ann", "aa") as ann:
                await here(ann)
                (address, *_) = (await ann.describe("t")).addresses
            asked = pull_of(started.founded.system, address, (7, 1))
            async with network_of(url, "ann", "aa") as network:
                told = await network.request(asked, m.RelayTold, wait=2.0, again=False)
                assert isinstance(decode_message(b"".join(told.message))[0], Answer)
            async with network_of(url, "bob", "bb") as network:
                with pytest.raises(Unauthorized, match="may not read"):
                    await network.request(asked, m.RelayTold, wait=2.0, again=False)

    play(work)


def set_of(id: int, name: str, tier: str, node: int, *upper: int, **more: Any) -> SetRow:
    of = {"nodes": (SetNode(node, "127.0.0.1", 7_000 + node),), "level": len(upper), **more}
    return SetRow(id, name, tier, upper=upper, **of)  # type: ignore[arg-type]


#: All of t is in set 4, and what has tag a in set 5.
TIERS = Topology(0, (
    set_of(0, "core", "core", 1),
    set_of(4, "north", "tandem", 7, 0),
    set_of(5, "near", "access", 8, 4, 0, tags=(TopicTags("default/t", ("a",)),)),
))  # fmt: skip


def test_a_relay_of_the_topology_has_the_rights_of_its_set_and_no_others(
    core: Node, tmp_path: Path, told: list[Event]
) -> None:
    """Who has what a relay logs in by has no message that its set has not."""

    async def work() -> None:
        async with as_user(core.url, "root", "rr") as root:
            await root.topology.apply(TIERS, 0)
            for name in ("north", "near"):
                rules = [AccessRule(("pull",), "set", name)]
                rules.append(AccessRule(("describe",), "topic", "t"))
                await root.access.change_rules(name, rules)
                await root.access.create_user(name, name, [name])

        north: dict[str, Any] = {"credentials": Credentials("north", "north"), "brokerset": 4}
        near: dict[str, Any] = {"credentials": Credentials("near", "near"), "brokerset": 5}
        async with started_relay(core, tmp_path / "north", node=7, **north) as upper:
            url = f"weir://127.0.0.1:{upper.port}"
            uppers = (tuple(parse_url(url)),)
            async with relay(
                core, tmp_path / "near", node=8, tags=frozenset({"a"}), uppers=uppers, **near
            ) as below:
                async with as_user(core.url, "root", "rr") as root:
                    while not offsets(told):
                        await root.publish("t", b"12", tag="a")
                        await asyncio.sleep(0.02)
                    truth = await values(root, tag="a")
                    (address, *_) = (await root.describe("t")).addresses
                async with as_user(below, "ann", "aa") as ann:
                    await here(ann)
                    while await values(ann, tag="a") != truth:
                        await asyncio.sleep(0.02)
            for at in (core.url, url):
                async with network_of(at, "near", "near") as network:

                    async def ask(asked: m.Request, network: NetworkClient = network) -> m.Reply:
                        return await network.request(asked, m.Reply, wait=2.0, again=False)

                    system = upper.founded.system
                    await ask(pull_of(system, address, (5, 8), "a"))
                    for refused in (
                        pull_of(system, address, (5, 8), "b"),
                        pull_of(system, address, (4, 7)),
                        m.Fetch(address, 0, 1 << 20),
                    ):
                        with pytest.raises(Unauthorized):
                            await ask(refused)

    play(work)
