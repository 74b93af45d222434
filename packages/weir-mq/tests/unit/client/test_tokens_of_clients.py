"""A client that logs in by a token: where that comes from, what it gives, and what is not tried."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import weir
from rigs.tokens import IDP, IDP_KEY, token_of
from weir import sync, testing
from weir.access import tokens
from weir.access.tokens import write_jwks
from weir.broker.access import session_ends
from weir.client.access import AccessRule
from weir.client.connection import credentials
from weir.client.connection.connection import Connection
from weir.client.connection.credentials import TokenCredentials, find_credentials
from weir.errors import AccessRevoked, BadRequest, Disconnected, NotAuthenticated, UnknownTopic


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the address of a closed set, where ann reads t, and tokens of `IDP` are taken."""
    for name in ("WEIR_TOKEN", "WEIR_TOKEN_FILE", "WEIR_PASSWORD", "WEIR_PASSWORD_FILE"):
        monkeypatch.delenv(name, raising=False)
    with testing.node() as node:
        with sync.connect(node.url) as w:
            w.create_topic("t")
            w.create_topic("u")
            w.access.create_user("root", "rr", ["admin"])
            w.access.change_rules("readers", [AccessRule(("read",), "topic", "t"),
                                              AccessRule(("read",), "topic", "u")])  # fmt: skip
            w.access.create_user("ann", "aa", ["readers"])
            jwks = write_jwks([IDP_KEY.public("idp")])
            w.access.trust_issuer(IDP, "weir", "default", jwks)
        with sync.connect(of(node.url, "root"), password="rr") as w:
            w.access.set_mode("closed")
        yield node.url


def of(url: str, user: str) -> str:
    return url.replace("//", f"//{user}@")


def idp_token(seconds: float = 600) -> str:
    return token_of(time.time(), seconds=seconds).decode()


def names(url: str, **more: object) -> list[str]:
    with sync.connect(url, **more) as w:  # type: ignore[arg-type]
        return sorted(one.name for one in w.topics())


def test_a_token_comes_from_wherever_it_is_said(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(idp_token() + "\n")
    file.chmod(0o600)

    async def later() -> str:
        await asyncio.sleep(0)
        return idp_token()

    for token in (idp_token(), file, idp_token, later):
        assert names(url, token=token) == ["t", "u"]
    monkeypatch.setenv("WEIR_TOKEN_FILE", str(file))
    assert names(url) == ["t", "u"]
    monkeypatch.setenv("WEIR_TOKEN", "not.a.token")
    with pytest.raises(NotAuthenticated, match=r"this token is not accepted.*it is no token"):
        sync.connect(url)


def test_an_expired_token_says_so_itself(url: str) -> None:
    with pytest.raises(NotAuthenticated, match=r"get a new one \(it says that it ends at 20"):
        sync.connect(url, token=expired())


def expired() -> str:
    return token_of(time.time() - 7_200, seconds=60).decode()


def test_the_set_issues_tokens_for_less(url: str) -> None:
    with sync.connect(of(url, "root"), password="rr") as root:
        root.access.create_token_key()
        assert root.access.opens_token_keys()
    with sync.connect(of(url, "ann"), password="aa") as ann:
        token = ann.access.issue_token(60, topics=["t"])
        assert token.token not in repr(token)
    assert names(url, token=token.token) == ["t"]
    with sync.connect(url, token=token.token) as w:
        with pytest.raises(UnknownTopic):
            w.describe("u")
        with pytest.raises(BadRequest, match="logged in by a token gets none"):
            w.access.issue_token(60)


def test_a_token_of_somebody_else_is_not_used(url: str) -> None:
    assert names(of(url, "ann"), token=idp_token()) == ["t", "u"]
    with pytest.raises(NotAuthenticated, match="is of user default/ann, not of root"):
        sync.connect(of(url, "root"), token=idp_token())


def test_a_refused_token_brings_no_password_out(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A downgrade: who refuses the token is not shown the password, which would let ann in."""
    monkeypatch.setenv("WEIR_PASSWORD", "aa")
    sent: list[str] = []
    before = Connection.request

    async def request(self: Connection, one: object, timeout: float) -> object:
        sent.append(getattr(one, "mechanism", type(one).__name__))
        return await before(self, one, timeout)  # type: ignore[arg-type]

    monkeypatch.setattr(Connection, "request", request)
    with pytest.raises(NotAuthenticated):
        sync.connect(of(url, "ann"), token=expired())
    assert sent == ["BEARER"]


def test_a_token_is_not_shown_over_a_network(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "is_private", property(lambda self: False))
    with pytest.raises(NotAuthenticated, match="need TLS"):
        sync.connect(url, token=idp_token())


@pytest.mark.parametrize(
    ("content", "mode", "error"),
    [("x" * 9_000, 0o600, "over 8,192"), ("", 0o600, "give a JWT"), ("a", 0o640, "chmod 600")],
)
def test_a_file_that_holds_no_token(tmp_path: Path, content: str, mode: int, error: str) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    os.chmod(file, mode)
    with pytest.raises(NotAuthenticated, match=error):
        asyncio.run(TokenCredentials(file).token())


def test_one_is_given_not_both() -> None:
    with pytest.raises(ValueError, match="not both"):
        weir.connect("weir://ann@h", password="x", token="y")
    with pytest.raises(ValueError, match="needs a user"):
        weir.connect("weir://h", password="x")
    assert find_credentials("", None, None) is None
    secret = TokenCredentials("marked.secret.token", "ann")
    assert "marked" not in repr(secret)


# -- renewal -------------------------------------------------------------------------------------


def test_a_file_that_is_written_again_keeps_a_client_in(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver's file is renewed; its executor holds the first token alone, and goes on, too."""
    monkeypatch.setattr(credentials, "_PAUSE_MIN", 0.05)
    for room in (session_ends, tokens):
        monkeypatch.setattr(room, "LEEWAY_SECONDS", 0)
    file = tmp_path / "token"
    issued: list[str] = []

    def write(seconds: float) -> None:
        issued.append(token_of(time.time(), seconds=seconds, token_id="job").decode())
        file.touch(0o600)
        file.write_text(issued[-1])

    write(1.5)
    with sync.connect(url, token=file) as driver, sync.connect(url, token=issued[0]) as executor:
        write(600)
        with sync.connect(url, token=token_of(time.time(), seconds=1.5).decode()) as other:
            until = time.monotonic() + 30
            while time.monotonic() < until:
                try:
                    other.topics()
                except (AccessRevoked, NotAuthenticated, Disconnected):
                    break
                time.sleep(0.1)
            else:
                pytest.fail("it goes on for ever")
        time.sleep(0.3)
        for w in (driver, executor):
            assert sorted(one.name for one in w.topics()) == ["t", "u"]


def test_a_function_that_fails_is_asked_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "_PAUSE_MIN", 0.02)
    for room in (session_ends, tokens):
        monkeypatch.setattr(room, "LEEWAY_SECONDS", 0)
    asked: list[float] = []

    def source() -> str:
        asked.append(time.monotonic())
        if len(asked) in (2, 3):
            raise RuntimeError("marked")
        return token_of(time.time(), seconds=1.2 if len(asked) == 1 else 600).decode()

    with sync.connect(url, token=source) as w:
        until = time.monotonic() + 30
        while len(asked) < 4 and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(1.5)
        assert len(w.topics()) == 2
    assert len(asked) == 4, "what was renewed is asked for no more until a third is left"
