"""A client that logs in: what it asks, where its password comes from, and how it ends."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import sys
from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ParamSpec, cast

import msgspec
import pytest

import weir
from weir import sync, testing
from weir.access.credentials import make_verifier
from weir.access.login_tickets import TICKET_SECONDS, TicketIssuer
from weir.access.scram import ScramServer, encode_nonce, parse_first
from weir.client.access import AccessRule
from weir.client.arguments import parse_url
from weir.client.connection.connection import Connection
from weir.client.connection.credentials import (
    Credentials,
    StaleTicket,
    TokenCredentials,
    find_credentials,
    find_password,
    read_password_file,
    split_user,
)
from weir.client.connection.system import SYSTEM, is_private
from weir.errors import (
    AccessRevoked,
    BadRequest,
    Disconnected,
    NotAuthenticated,
    Refused,
    RemoteProtocolError,
    Unauthorized,
    UnknownTopic,
    UserExists,
)
from weir.protocol.client.access import Login, LoginStep

P = ParamSpec("P")


@pytest.fixture
def url() -> Iterator[str]:
    """Return the address of a closed set in which root is an administrator, and ann reads t."""
    with testing.node() as node:
        with sync.connect(node.url) as w:
            w.create_topic("t")
            w.publish("t", b"a")
            w.access.create_user("root", "rr", ["admin"])
            w.access.change_rules("readers", [AccessRule(("read",), "topic", "t")])
            w.access.create_user("ann", "aa", ["readers"])
        with sync.connect(of(node.url, "root"), password="rr") as w:
            w.access.set_mode("closed")
        yield node.url


def in_a_loop(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """Let a test that awaits be one that pytest runs."""

    @wraps(test)
    def run(*given: P.args, **named: P.kwargs) -> None:
        asyncio.run(test(*given, **named))

    return run


def of(url: str, user: str) -> str:
    return url.replace("//", f"//{user}@")


@in_a_loop
async def test_it_may_do_what_its_user_may(url: str) -> None:
    async with weir.connect(of(url, "ann"), password="aa") as w:
        values = [message.value async for message in w.reader("t", follow=False)]
        assert values == [b"a"]
        with pytest.raises(Unauthorized, match="may not publish any topic"):
            await w.publish("t", b"b")
        with pytest.raises(UnknownTopic):
            await w.describe("u")
        with pytest.raises(Unauthorized):
            await w.access.describe()


@pytest.mark.parametrize(("user", "password"), [("ann", "wrong"), ("bob", "aa"), ("a/b/c", "aa")])
@in_a_loop
async def test_others_are_not_let_in(url: str, user: str, password: str) -> None:
    with pytest.raises(NotAuthenticated, match="check the user"):
        await weir.connect(of(url, user.replace("/", "%2F")), password=password)


@in_a_loop
async def test_nobody_is_told_to_log_in(url: str) -> None:
    with pytest.raises(NotAuthenticated, match="weir://USER@HOST"):
        await weir.connect(url)


@in_a_loop
async def test_a_revoked_user_hears_it_and_does_not_come_back(url: str) -> None:
    async with (
        weir.connect(of(url, "ann"), password="aa") as ann,
        weir.connect(of(url, "root"), password="rr") as root,
    ):
        reader = ann.reader("t", start="latest")
        await reader.open()
        waits = asyncio.ensure_future(anext(reader.__aiter__()))
        await asyncio.sleep(0.05)
        changed = await root.access.revoke_user("ann")
        assert changed.unreached == ()
        with pytest.raises((AccessRevoked, NotAuthenticated)):
            await asyncio.wait_for(waits, 10)
        with pytest.raises((AccessRevoked, NotAuthenticated)):
            await ann.topics()
        await root.topics()


@in_a_loop
async def test_an_administrator_sees_and_changes_all_of_it(url: str) -> None:
    async with weir.connect(of(url, "root"), password="rr") as w:
        state = await w.access.describe()
        assert state.mode == "closed"
        assert [(one.name, one.roles) for one in state.users] == [
            ("default/ann", ("readers",)),
            ("default/root", ("admin",)),
        ]
        rule = AccessRule(("read",), "topic", "default/t")
        assert state.roles == {"readers": (rule,)}
        why = await w.access.explain("ann", "read", "topic", "t")
        assert (why.allowed, why.role, why.rule) == (True, "readers", rule)
        assert not (await w.access.explain("ann", "publish", "topic", "t")).allowed
        with pytest.raises(UserExists):
            await w.access.create_user("ann", "other")
        await w.access.change_roles("ann", remove=["readers"])
        await w.access.delete_role("readers")
        assert (await w.access.describe()).roles == {}
        await w.access.set_password("ann", "cc")
        with pytest.raises(NotAuthenticated):
            await weir.connect(of(url, "ann"), password="aa")
        async with weir.connect(of(url, "ann"), password="cc") as ann:
            assert await ann.topics() == []
            with pytest.raises(UnknownTopic):
                await ann.describe("t")
        refusals = await w.access.refusals()
        assert ("describe", "default/t") in [(one.rule.verbs[0], one.rule.name) for one in refusals]


@in_a_loop
async def test_a_password_is_not_shown_over_a_network(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "is_private", property(lambda self: False))
    with pytest.raises(NotAuthenticated, match="need TLS"):
        await weir.connect(of(url, "ann"), password="aa")


# -- where a password comes from -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("weir://h", ("weir://h", "")),
        ("weir://ann@h:1,i:2", ("weir://h:1,i:2", "ann")),
        ("weir://shop%2Fann@h", ("weir://h", "shop/ann")),
        ("weirs://ann@h?ca=x@y", ("weirs://h?ca=x@y", "ann")),
        ("weirs://h?ca=x@y", ("weirs://h?ca=x@y", "")),
    ],
)
def test_a_user_stands_before_the_host(url: str, found: tuple[str, str]) -> None:
    assert split_user(url) == found


def test_an_address_has_no_password() -> None:
    with pytest.raises(ValueError, match="WEIR_PASSWORD") as caught:
        weir.connect("weir://ann:hunter22@localhost")
    assert "hunter22" not in str(caught.value)
    with pytest.raises(ValueError, match="names no user"):
        weir.connect("weir://@localhost")
    with pytest.raises(ValueError, match="needs a user"):
        weir.connect("weir://localhost", password="x")


def test_it_is_given_or_of_the_environment_or_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_text("of a file\nand more\n")
    file.chmod(0o600)
    for name in ("WEIR_PASSWORD", "WEIR_PASSWORD_FILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="user ann needs a password"):
        find_password("ann")
    assert find_password("ann", file) == "of a file"
    monkeypatch.setenv("WEIR_PASSWORD_FILE", str(file))
    assert find_password("ann") == "of a file"
    monkeypatch.setenv("WEIR_PASSWORD", "of the environment")
    assert find_password("ann") == "of the environment"
    assert find_password("ann", "given") == "given"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_file_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "password"
    file.write_text("x")
    file.chmod(mode)
    with pytest.raises(ValueError, match="chmod 600"):
        read_password_file(file)


def test_a_file_that_is_no_password_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.touch(0o600)
    file.write_bytes(b"x" * 5_000)
    with pytest.raises(ValueError, match="over 4,096 bytes"):
        read_password_file(file)
    file.write_bytes(b"\xff")
    with pytest.raises(ValueError, match="not UTF-8"):
        read_password_file(file)
    with pytest.raises(FileNotFoundError):
        read_password_file(tmp_path / "nothing")


def test_nothing_shows_a_password() -> None:
    credentials = Credentials("ann", "hunter22")
    assert "hunter22" not in repr(credentials)
    with pytest.raises(BadRequest):
        Credentials("ann", "")


def test_an_error_shows_no_password() -> None:
    for url in (
        "weir://ann:hunter22@h",
        "http://ann:hunter22@h",
        "weirs://ann:hunter22@h h",
        "weirs://ann:hunter22@h?no=x",
    ):
        with pytest.raises(ValueError, match="is no address") as caught:
            parse_url(url)
        assert "hunter22" not in str(caught.value)


def test_an_app_may_name_a_user() -> None:
    assert weir.App("weir://ann@localhost:1")
    with pytest.raises(ValueError, match="has no password"):
        weir.App("weir://ann:x@localhost")
    with pytest.raises(ValueError, match="is no address"):
        weir.App("weir://ann@local host")


# -- the broker proves itself, too ---------------------------------------------------------------


class FalseBroker:
    """Answers logins by a verifier of some password, and ends them as it is told."""

    def __init__(self, password: str = "aa", done: bool = True, proof: bytes | None = None) -> None:
        self._verifier = make_verifier(password, bytes(16), 4_096)
        self._done = done
        self._proof = proof
        self._server: ScramServer | None = None

    def __call__(self, request: Login) -> LoginStep:
        if self._server is None:
            first = parse_first(request.message)
            self._server = ScramServer(first, self._verifier, encode_nonce(bytes(18)))
            return LoginStep(self._server.challenge)
        proof = self._server.finish(request.message) if self._proof is None else self._proof
        return LoginStep(proof, self._done)

    is_private = True

    async def request(self, request: Login, timeout: float) -> LoginStep:
        return self(request)


def both_ways(broker: Callable[[], FalseBroker]) -> Iterator[Callable[[], None]]:
    """Yield the login with an event loop, and the one without."""
    ann = Credentials("ann", "aa")
    yield lambda: asyncio.run(ann.log_in(broker(), 1.0))
    yield lambda: ann.log_in_blocking(broker(), True)


def test_a_broker_that_knows_no_password_is_not_believed() -> None:
    stranger = b"v=" + base64.b64encode(bytes(32))
    for log_in in both_ways(FalseBroker):
        log_in()
    for log_in in both_ways(lambda: FalseBroker(proof=stranger)):
        with pytest.raises((NotAuthenticated, RemoteProtocolError)):
            log_in()
    for log_in in both_ways(lambda: FalseBroker(done=False)):
        with pytest.raises(RemoteProtocolError, match="did not log in"):
            log_in()
    for log_in in both_ways(lambda: FalseBroker(password="another")):
        with pytest.raises(NotAuthenticated, match="user ann"):
            log_in()


class TicketBroker(FalseBroker):
    """Gives a ticket with each login, and takes only those of `good`."""

    def __init__(
        self, shown: list[bytes], good: bool = True, error: type[Refused] = NotAuthenticated
    ) -> None:
        super().__init__()
        self._shown = shown
        self._good = good
        self._error = error

    def __call__(self, request: Login) -> LoginStep:
        if self._server is None:
            self._shown.append(request.ticket)
            if request.ticket and not self._good:
                raise self._error("it is not good any more")
            return super().__call__(request)
        assert not request.ticket
        return msgspec.structs.replace(super().__call__(request), ticket=b"t%d" % len(self._shown))


@pytest.mark.parametrize("is_blocking", [False, True])
def test_the_ticket_of_the_last_login_is_shown(is_blocking: bool) -> None:
    ann, shown = Credentials("ann", "aa"), list[bytes]()

    def log_in(good: bool = True) -> None:
        broker = TicketBroker(shown, good)
        if is_blocking:
            ann.log_in_blocking(broker, True)
        else:
            asyncio.run(ann.log_in(broker, 1.0))

    log_in()
    log_in()
    assert shown == [b"", b"t1"]
    with pytest.raises(Disconnected, match="next connection logs in without it"):
        log_in(good=False)
    log_in()
    assert shown == [b"", b"t1", b"t2", b""], "a refused one is shown once"


class Kept:
    """Keeps a ticket beside the client."""

    def __init__(self) -> None:
        self.ticket = b""

    def read(self) -> bytes:
        return self.ticket

    def write(self, ticket: bytes) -> None:
        self.ticket = ticket


@pytest.mark.parametrize("error", [NotAuthenticated, BadRequest])
@pytest.mark.parametrize("kind", ["password", "token"])
def test_the_ticket_of_another_process_is_shown(kind: str, error: type[Refused]) -> None:
    def ann() -> Any:
        by_token = TokenCredentials("a.b.c", "ann", kept)
        return Credentials("ann", "aa", kept) if kind == "password" else by_token

    def log_in(good: bool = True) -> None:
        if kind == "password":
            ann().log_in_blocking(TicketBroker(shown, good, error), True)
        else:
            broker = Tickets(b"t1" if good else b"", error)
            broker.shown = shown
            ann().log_in_blocking(broker.take, True)

    kept, shown = Kept(), list[bytes]()
    log_in()
    assert (shown, kept.ticket) == ([b""], b"t1")
    with pytest.raises(StaleTicket):
        log_in(good=False)
    assert shown[1:] == [b"t1"]
    assert kept.ticket == b"", "a refused one is forgotten by all"
    log_in()
    assert shown[2:] == [b""]


def test_a_token_without_a_user_has_no_ticket_of_another_process() -> None:
    """It may be another user's each time, and a ticket of somebody else is a wrong password."""
    kept = Kept()
    kept.ticket = b"of ann"
    for user, expected in (("", b""), ("ann", b"of ann")):
        found: Any = find_credentials(user, None, "a.b.c", (), kept)
        broker = Tickets(b"")
        with contextlib.suppress(StaleTicket):
            found.log_in_blocking(broker.take, True)
        assert broker.shown == [expected]


class Tickets:
    """Takes logins by the ticket b"new" or by none, and no other; tokens need one step."""

    is_private = True

    def __init__(self, given: bytes, error: type[Refused] = NotAuthenticated) -> None:
        """Give a ticket with each login; refuse others by an error."""
        self.given, self._error = given, error
        self.shown: list[bytes] = []

    def take(self, login: Login) -> LoginStep:
        self.shown.append(login.ticket)
        if login.ticket not in (b"", b"new"):
            raise self._error("it is not good any more")
        return LoginStep(b"60", True, "default/ann", self.given)

    async def request(self, login: Login, timeout: float) -> LoginStep:
        """Answer once all that asked at once have asked."""
        await asyncio.sleep(0)
        return self.take(login)


@pytest.mark.parametrize("kind", ["password", "token"])
def test_each_of_several_that_show_an_expired_ticket_is_told_to_connect_again(kind: str) -> None:
    """Counterexample: all but the first were taken for wrong passwords, which ends the client."""

    async def log_in_together() -> list[Any]:
        await who.log_in(first, 1.0)
        logins = (who.log_in(broker, 1.0) for _ in range(3))
        return await asyncio.gather(*logins, return_exceptions=True)

    broker, first = Tickets(b"old"), TicketBroker([]) if kind == "password" else Tickets(b"old")
    who: Any = Credentials("ann", "aa") if kind == "password" else TokenCredentials("a.b.c")
    assert [type(one) for one in asyncio.run(log_in_together())] == [StaleTicket] * 3
    assert len(broker.shown) == 3
    assert len(set(broker.shown)) == 1, "all showed the old one"


@pytest.mark.parametrize("is_blocking", [False, True])
def test_a_refused_ticket_takes_no_newer_one_along(is_blocking: bool) -> None:
    token, broker = TokenCredentials("a.b.c"), Tickets(b"old")
    token.log_in_blocking(broker.take, True)
    broker.given = b"new"

    def take_late(login: Login) -> LoginStep:
        """Before this is refused, another connection gets a new ticket."""
        token.log_in_blocking(lambda _: LoginStep(b"60", True, "default/ann", b"new"), True)
        return broker.take(login)

    async def take_later(login: Login, timeout: float) -> LoginStep:
        return take_late(login)

    def log_in() -> None:
        if is_blocking:
            token.log_in_blocking(take_late, True)
        else:
            late = cast(Any, SimpleNamespace(is_private=True, request=take_later))
            asyncio.run(token.log_in(late, 1.0))

    with pytest.raises(StaleTicket):
        log_in()
    token.log_in_blocking(broker.take, True)
    assert broker.shown == [b"", b"old", b"new"]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_ticket_that_is_over_is_not_shown(is_late: bool) -> None:
    now = 1_800_000_000
    issued = TicketIssuer(bytes(32), 1).issue("user:default/ann#2", 1, now, bytes(16))
    shown: list[bytes] = []
    ann = Credentials("ann", "aa")

    class OneTicket(TicketBroker):
        def __call__(self, request: Login) -> LoginStep:
            return msgspec.structs.replace(super().__call__(request), ticket=issued)

    ann.log_in_blocking(OneTicket(shown), True)
    at = (now + TICKET_SECONDS) * 1_000_000 - (0 if is_late else 1)
    then = SYSTEM.set(msgspec.structs.replace(SYSTEM.get(), now_us=lambda: at))
    try:
        ann.log_in_blocking(OneTicket(shown), True)
    finally:
        SYSTEM.reset(then)
    assert shown == [b"", b"" if is_late else issued]


def test_a_socket_says_whether_others_can_read_along() -> None:
    class Peer:
        def __init__(self, address: object) -> None:
            self.address = address

        def getpeername(self) -> object:
            return self.address

    for address in (("127.0.0.1", 1), ("::1", 1, 0, 0), "/run/socket"):
        assert is_private(cast(Any, Peer(address))), address
    for address in (("10.0.0.1", 1), ("fe80::1", 1, 0, 0)):
        assert not is_private(cast(Any, Peer(address))), address


# -- the keyring -----------------------------------------------------------------------------------


class Keyring(ModuleType):
    """The library of that name, with passwords by service and user."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: str = "") -> None:
        super().__init__("keyring")
        self.kept: dict[tuple[str, str], str] = {}
        self.errors = ModuleType("keyring.errors")
        kinds = {"KeyringError": type("KeyringError", (Exception,), {})}
        kinds["NoKeyringError"] = type("NoKeyringError", (kinds["KeyringError"],), {})
        vars(self.errors).update(kinds)
        self._error = kinds[error]("it is locked") if error else None
        for name in ("WEIR_PASSWORD", "WEIR_PASSWORD_FILE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setitem(sys.modules, "keyring", self)
        monkeypatch.setitem(sys.modules, "keyring.errors", self.errors)

    def get_password(self, service: str, user: str) -> str | None:
        if self._error is not None:
            raise self._error
        return self.kept.get((service, user))


def test_a_keyring_is_asked_last(monkeypatch: pytest.MonkeyPatch) -> None:
    keyring = Keyring(monkeypatch)
    hosts = [("a", 1), ("::1", 6800)]
    with pytest.raises(ValueError, match="keyring set weir://a:1 ann"):
        find_password("ann", None, hosts)
    keyring.kept["weir://[::1]:6800", "ann"] = "of the second host"
    assert find_password("ann", None, hosts) == "of the second host"
    keyring.kept["weir://a:1", "ann"] = "of the first"
    assert find_password("ann", None, hosts) == "of the first"
    with pytest.raises(ValueError, match="needs a password"):
        find_password("bob", None, hosts)
    monkeypatch.setenv("WEIR_PASSWORD", "of the environment")
    assert find_password("ann", None, hosts) == "of the environment"


def test_a_client_logs_in_by_the_keyring(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keyring = Keyring(monkeypatch)
    keyring.kept[url, "ann"] = "aa"
    with sync.connect(of(url, "ann")) as w:
        assert [one.name for one in w.topics()] == ["t"]


def test_a_keyring_that_is_not_there_or_is_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = [("a", 1)]
    Keyring(monkeypatch, "KeyringError")
    with pytest.raises(ValueError, match=r"it is locked.*unlock it"):
        find_password("ann", None, hosts)
    Keyring(monkeypatch, "NoKeyringError")
    with pytest.raises(ValueError, match="needs a password"):
        find_password("ann", None, hosts)
    monkeypatch.setitem(sys.modules, "keyring", None)  # it is not installed
    with pytest.raises(ValueError, match=r"weir-mq\[keyring\]"):
        find_password("ann", None, hosts)
