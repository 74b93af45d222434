"""A closed set shows its figures to those who may list the system; health is for everybody."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import weir
from rigs.access import give, rule, set_mode
from rigs.certificates import TestCa, node_running
from rigs.clients import network_of
from rigs.tokens import token_of, trust
from weir.access.failures import FREE_FAILURES
from weir.access.signatures import PrivateKey
from weir.broker.metadata.security.access import Access
from weir.broker.metadata.security.rules import Rule
from weir.broker.shard import Shard
from weir.client.access import AccessRule
from weir.errors import Unavailable
from weir.protocol.client.access import AccessChanged
from weir.server.config import TlsConfig
from weir.server.disk.node_folder import NodeFolder, Part
from weir.server.network.tls import TlsAcceptor
from weir.server.observability import endpoint
from weir.server.observability.endpoint import Answer, Pages, Visitor
from weir.server.observability.guard import NodeGuard
from weir.tls.files import ServerFiles
from weir.tls.identity import parse_identity
from weir.tls.peers import PeerCertificate

PASSWORD = "the administrator's"
HEAD = "GET {} HTTP/1.1\r\n{}\r\n"


async def get(
    port: int, path: str, tls: ssl.SSLContext | None = None, header: str = ""
) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=tls, server_hostname="localhost" if tls else None
    )
    writer.write(HEAD.format(path, header).encode())
    answer = (await asyncio.wait_for(reader.read(), 10)).decode()
    writer.close()
    if not answer:
        return 0, ""
    head, _, body = answer.partition("\r\n\r\n")
    assert ("WWW-Authenticate: Bearer" in head) == (head.split()[1] == "401")
    return int(head.split()[1]), body


async def unanswered(port: int, tls: ssl.SSLContext) -> bool:
    """Return whether a connection ends without an answer."""
    try:
        return await get(port, "/metrics", tls) == (0, "")
    except OSError:
        return True


def context(ca: TestCa, who: str = "") -> ssl.SSLContext:
    """What a collector of figures connects with: it knows no protocol but HTTP."""
    made = ssl.create_default_context(cafile=ca.bundle)
    made.set_alpn_protocols(["http/1.1"])
    if who:
        issued = ca.issue(who)
        made.load_cert_chain(issued.certificate, issued.key)
    return made


@asynccontextmanager
async def closed_node(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    ca: TestCa,
    files: ServerFiles | None = None,
    **tls: Any,
) -> AsyncIterator[tuple[int, int]]:
    """A closed set of one node: its port, and the port of its pages."""
    caplog.set_level(logging.INFO)
    files = files or ca.files(ca.issue("node/1"))
    NodeFolder(tmp_path / "data").found(2, None, Part(system=ca.system))
    async with node_running(tmp_path / "data", files, metrics="127.0.0.1:0", **tls) as port:
        (figures,) = re.findall(r"metrics at http://127.0.0.1:(\d+)/metrics", caplog.text)
        async with weir.connect(ca.url(port)) as client:
            await client.access.create_user("root", PASSWORD, ["admin"])
            rule = AccessRule(("list",), "system")
            await client.access.change_rules("sees", [rule])
            await client.access.create_user("anna", PASSWORD, ["sees"])
            await client.access.create_user("bob", PASSWORD)
        url = ca.url(port).replace("weirs://", "weirs://root@")
        async with weir.connect(url, password=PASSWORD) as client:
            await client.access.set_mode("closed")
            # A set that closes makes its audit topic, whose partition has no leader for a moment.
            async with asyncio.timeout(10):
                while "_weir/audit" not in [info.full_name for info in await client.topics()]:
                    await asyncio.sleep(0.02)
        async with asyncio.timeout(10):
            while (await get(int(figures), "/readyz"))[0] != 200:
                await asyncio.sleep(0.02)
        yield port, int(figures)


def test_a_closed_set_shows_figures_by_certificates(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ca = TestCa(tmp_path / "ca")
    other = TestCa(tmp_path / "other")

    async def run() -> None:
        async with closed_node(tmp_path, caplog, ca) as (_, port):
            for path in ("/healthz", "/readyz"):
                assert (await get(port, path))[0] == 200, await get(port, path)
                assert (await get(port, path, context(ca)))[0] == 200
            for path in ("/metrics", "/stages", "/nothing"):
                assert (await get(port, path))[0] == 401, "what is there is not told, either"
            found, body = await get(port, "/metrics", context(ca, "user/default/anna"))
            assert found == 200
            assert "weir_access_mode 2" in body
            assert (await get(port, "/metrics", context(ca, "user/default/bob")))[0] == 403
            for who in ("user/default/nobody", "node/2", "device/7/0"):
                assert (await get(port, "/metrics", context(ca, who)))[0] == 401
            ca.become(0xDEF)
            assert (await get(port, "/metrics", context(ca, "user/default/root")))[0] == 401
            foreign = context(other, "user/default/anna")
            foreign.check_hostname, foreign.verify_mode = False, ssl.CERT_NONE
            assert await unanswered(port, foreign)

    asyncio.run(run())


def test_a_revoked_certificate_shows_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ca = TestCa(tmp_path / "ca")
    revoked = tmp_path / "revoked.txt"
    issued = ca.issue("user/default/anna")
    revoked.write_text(f"{issued.serial}\n")
    files = ca.files(ca.issue("node/1"), str(revoked))

    async def run() -> None:
        async with closed_node(tmp_path, caplog, ca, files) as (_, port):
            shown = context(ca)
            shown.load_cert_chain(issued.certificate, issued.key)
            assert (await get(port, "/metrics", shown))[0] == 401

    asyncio.run(run())


def test_a_closed_set_shows_figures_by_tokens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ca = TestCa(tmp_path / "ca")

    async def run() -> None:
        async with closed_node(tmp_path, caplog, ca) as (port, pages):
            url = ca.url(port).replace("weirs://", "weirs://root@")

            async def by(token: bytes, tls: ssl.SSLContext | None = None) -> int:
                header = f"Authorization: Bearer {token.decode()}\r\n"
                return (await get(pages, "/metrics", tls, header))[0]

            async with weir.connect(url, password=PASSWORD) as root:
                await network_of(root).request(trust(), AccessChanged)
                now = time.time()
                for tls in (None, context(ca)):  # loopback is as good as TLS
                    assert await by(token_of(now, "anna"), tls) == 200
                    assert await by(token_of(now, "bob"), tls) == 403
                    assert await by(token_of(now, "anna", topics=("default/t",)), tls) == 403
                    assert await by(token_of(now, "root", roles=("sees",)), tls) == 403
                assert await by(token_of(now, "root")) == 200
                bad = [
                    token_of(now, "nobody"), token_of(now - 4_000, "anna"), b"no token", b"",
                    token_of(now, "anna", key=PrivateKey.from_seed(bytes(32))),
                ]  # fmt: skip
                for token in bad:
                    assert await by(token) == 401
                await root.access.revoke_user("anna")
                assert await by(token_of(now, "anna")) == 401

    asyncio.run(run())


def test_figures_go_by_the_tls_of_the_port(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ca = TestCa(tmp_path / "ca")

    async def run() -> None:
        async with closed_node(tmp_path, caplog, ca, plaintext="refuse") as (_, port):
            assert (await get(port, "/healthz"))[0] == 200
            found, body = await get(port, "/metrics")
            assert (found, "https" in body) == (403, True)
            assert (await get(port, "/metrics", context(ca, "user/default/anna")))[0] == 200

    asyncio.run(run())


def test_an_open_set_shows_its_figures_to_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ca = TestCa(tmp_path / "ca")

    async def run() -> None:
        files = ca.files(ca.issue("node/1"))
        async with node_running(tmp_path / "data", files, metrics="127.0.0.1:0"):
            (port,) = re.findall(r"metrics at http://127.0.0.1:(\d+)/metrics", caplog.text)
            assert (await get(int(port), "/metrics"))[0] == 200
            found, body = await get(int(port), "/metrics", context(ca))
            assert (found, "weir_build_info" in body) == (200, True)
            assert (await get(int(port), "/nothing", context(ca)))[0] == 404

    asyncio.run(run())


class Closed:
    mode = "closed"


def guard(plaintext: Any = "allow", check_news: Any = lambda: None) -> NodeGuard:
    """A guard of a shard that knows nobody, and of a node without TLS."""
    access = SimpleNamespace(user=lambda _: None)
    registry = SimpleNamespace(catalog=SimpleNamespace(access=access))
    shard = SimpleNamespace(registry=registry, check_news=check_news)
    tls = cast(TlsAcceptor, SimpleNamespace(serving=None))
    return NodeGuard(cast(Shard, shard), tls, TlsConfig(plaintext=plaintext), Closed())


async def told(one: NodeGuard, address: str, token: bytes = b"") -> int:
    answer: Answer | None = await one.check(Visitor(address, False, None, token))
    return 200 if answer is None else answer[0]


#: What a role allows, and whether its users see pages in a closed set.
ROLES: dict[str, tuple[list[Rule], bool]] = {
    "none": ([], False),
    "exact": ([rule("list", "system", "")], True),
    "other verb": ([rule(verb, "system", "") for verb in ("lis", "lists", "describe")], False),
    "other kind": ([rule("list", kind, "", True) for kind in ("topic", "namespace")], False),
    "namesake": ([rule("list", "system", "weir")], False),
    "admin": ([], True),
}


@pytest.mark.parametrize("mode", ["open", "watch", "closed"])
@pytest.mark.parametrize("role", ROLES)
def test_pages_are_shown_by_a_certificate_to_whom_a_rule_allows_it(mode: str, role: str) -> None:
    rules, sees = ROLES[role]
    access = Access()
    set_mode(access, mode)
    give(access, "default/anna", *rules, admin=role == "admin")
    shard = SimpleNamespace(
        registry=SimpleNamespace(catalog=SimpleNamespace(access=access)), check_news=lambda: None
    )
    node = parse_identity("weir://abc/0/node/1")
    serving = SimpleNamespace(own=SimpleNamespace(identity=node), revoked=(), context=None)
    one = NodeGuard(
        cast(Shard, shard), cast(TlsAcceptor, SimpleNamespace(serving=serving)), TlsConfig(), access
    )

    async def code_of(who: str) -> int:
        shown = PeerCertificate(parse_identity(f"weir://abc/0/{who}"), "1", time.time() + 60)
        answer = await one.check(Visitor("192.0.2.1", True, shown, b""))
        return 200 if answer is None else answer[0]

    is_shown = sees or mode != "closed"
    assert asyncio.run(code_of("user/default/anna")) == (200 if is_shown else 403)
    # Nobody else is shown more by what anna may.
    for who in ("user/other/anna", "user/default/ann", "node/1", "device/7/0"):
        assert asyncio.run(code_of(who)) == (200 if mode != "closed" else 401)


def test_a_shard_without_news_shows_nothing() -> None:
    """Users whose certificates it would take may have been revoked meanwhile."""

    def check_news() -> None:
        raise Unavailable("no news")

    assert asyncio.run(told(guard(check_news=check_news), "127.0.0.1")) == 503
    assert asyncio.run(told(guard(), "127.0.0.1")) == 401


def test_a_token_is_not_taken_where_others_read_along() -> None:
    assert asyncio.run(told(guard(), "192.0.2.1", b"token")) == 403


def test_who_guesses_is_slowed_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def wait(seconds: float) -> None:
        waited.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", wait)

    async def run() -> list[int]:
        one = guard()
        codes = [await told(one, "2001:db8::1") for _ in range(FREE_FAILURES + 30)]
        waited.append(-1.0)
        assert await told(one, "2001:db8:0:1::1") == 401
        return codes

    codes = asyncio.run(run())
    assert codes[: FREE_FAILURES + 1] == [401] * (FREE_FAILURES + 1)
    assert codes[-1] == 429
    assert waited[: FREE_FAILURES + 1] == [0.0] * (FREE_FAILURES + 1)
    assert waited[FREE_FAILURES + 1] > 0
    assert waited[-1] == 0.0


async def page() -> Answer:
    return 200, endpoint.PLAIN, "here\n"


class ByTls:
    """Lets everybody see all pages, by the certificate of a test."""

    def __init__(self, ca: TestCa) -> None:
        issued = ca.issue("node/1")
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(issued.certificate, issued.key)

    async def check(self, visitor: Visitor) -> Answer | None:
        return None


@pytest.mark.parametrize(
    "data",
    [
        b"\x16", b"\x16\x03\x01\x00\x05hello", b"\x16" * 40_000,
        b"\x16\x03\x01\x40\x00" + bytes(99),
    ],
)  # fmt: skip
def test_what_is_no_handshake_ends_the_connection_alone(
    tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "REQUEST_SECONDS", 0.3)
    ca = TestCa(tmp_path / "ca")

    async def run() -> None:
        pages = Pages({"/page": page}, guard=ByTls(ca))
        async with pages.listening("127.0.0.1", 0) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            answer = await asyncio.wait_for(reader.read(), 10)
            assert b"HTTP" not in answer
            writer.close()
            assert await get(port, "/page", context(ca)) == (200, "here\n")

    asyncio.run(run())


def test_a_long_request_by_tls_is_refused(tmp_path: Path) -> None:
    ca = TestCa(tmp_path / "ca")

    async def run() -> tuple[int, str]:
        async with Pages({"/page": page}, guard=ByTls(ca)).listening("127.0.0.1", 0) as port:
            return await get(port, "/page", context(ca), "X: " + "x" * 20_000 + "\r\n")

    assert asyncio.run(run())[0] == 400
