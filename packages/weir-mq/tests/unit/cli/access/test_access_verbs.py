"""`weir user`, `role`, `acl` and `access`: from an open set to a closed one, and what is shown."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from weir import sync, testing
from weir.access.wrapping import NONCE_BYTES, KeyRing
from weir.broker.metadata.security.access import Access
from weir.broker.metadata.security.vault import FALSE_SALTS, Vault
from weir.cli import connection, output
from weir.cli.main import main
from weir.client.connection.network_client import NetworkClient

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def node() -> Iterator[testing.Node]:
    with testing.node() as node:
        with sync.connect(node.url) as w:
            w.create_topic("orders")
            w.create_topic("shop/wages")
        yield node


@pytest.fixture
def say(
    node: testing.Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Say:
    """Return what a command returns and prints, as `user` with a password, or as nobody."""

    def saying(*words: object, user: str = "", password: str = "") -> tuple[int, str, str]:
        url = node.url.replace("//", f"//{user}@") if user else node.url
        monkeypatch.setenv("WEIR_URL", url)
        monkeypatch.setenv("WEIR_PASSWORD", password)
        code = main([*map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return saying


def rows(out: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out)
    return found


def test_a_set_is_closed_step_by_step(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_NEW_PASSWORD", "secret of root")
    code, out, _ = say("access", "init", "--user", "root")
    assert (code, out.splitlines()[0]) == (0, "user root is created, with the role admin")
    assert say("acl", "allow", "shop", "publish", "topic", "orders")[1] == (
        "role shop may publish topic orders\n"
    )
    monkeypatch.setenv("WEIR_NEW_PASSWORD", "secret of ann")
    assert say("user", "create", "ann", "--role", "shop")[0] == 0
    assert say("access", "mode", "watch")[1] == "the mode is watch\n"
    ann: dict[str, str] = {"user": "ann", "password": "secret of ann"}
    root: dict[str, str] = {"user": "root", "password": "secret of root"}
    assert say("pub", "orders", "a", **ann)[0] == say("pub", "shop/wages", "a", **ann)[0] == 0
    suggested = say("acl", "suggest")[1]
    assert "weir acl allow ROLE publish topic shop/wages    # default/ann, " in suggested
    assert "publish topic default/orders    # default/ann" not in suggested
    missing = rows(say("acl", "suggest", "--json")[1])["missing"]
    assert {"principal", "rule", "count"} == {*missing[0]}
    code, _, err = say("access", "mode", "closed")
    assert code == 1
    assert "log in as an administrator" in err
    assert say("access", "mode", "closed", **root)[:2] == (0, "the mode is closed\n")

    code, _, err = say("topic", "list")
    assert (code, "log in" in err) == (1, True)
    assert "shop/wages" not in say("topic", "list", **ann)[1]
    assert "shop/wages" in say("topic", "list", **root)[1]
    assert say("pub", "orders", "b", **ann)[0] == 0
    assert "no such topic" in say("pub", "shop/wages", "b", **ann)[2]
    assert "may not administer the system" in say("user", "list", **ann)[2]
    code, out, _ = say("acl", "explain", "ann", "publish", "topic", "orders", **root)
    assert code == 0
    assert out.endswith("because role shop may publish topic default/orders\n")
    code, out, _ = say("acl", "explain", "ann", "read", "topic", "orders", **root)
    assert (code, out.splitlines()) == (1, [
        "no: none of the roles of user ann lets it read topic orders",
        "it has role shop; this would let it:",
        "  weir acl allow shop read topic orders",
    ])  # fmt: skip
    told = rows(say("acl", "explain", "ann", "read", "topic", "orders", "--json", **root)[1])
    assert (told["allowed"], told["rule"]) == (False, None)
    assert told["missing"] == ["weir acl allow shop read topic orders"]
    # What it says is missing is all that is missing.
    assert say(*told["missing"][0].split()[1:], **root)[0] == 0
    assert say("acl", "explain", "ann", "read", "topic", "orders", **root)[0] == 0
    assert say("acl", "remove", "shop", "read", "topic", "orders", **root)[0] == 0

    revoked = rows(say("user", "revoke", "ann", "--json", **root)[1])
    assert (revoked["schema"], revoked["unreached"]) == ("weir.access-change/1", [])
    assert "no user ann" in say("user", "revoke", "ann", **root)[2]
    assert "check the user and the password" in say("pub", "orders", "c", **ann)[2]
    assert "no user could open it again" in say("user", "revoke", "root", **root)[2]
    assert say("access", "status", **root)[1].endswith(
        "1 user and 1 role; role admin: default/root\n"
    )
    status = rows(say("access", "status", "--json", **root)[1])
    assert (status["mode"], status["users"], status["admins"]) == ("closed", 1, ["default/root"])


def test_what_there_is_is_listed(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_NEW_PASSWORD", "x")
    assert say("user", "list")[1] == "no users\n"
    say("acl", "allow", "shop", "publish,read", "topic", "o", "--prefix")
    say("role", "create", "idle")
    say("user", "create", "shop/ann")
    say("user", "grant", "shop/ann", "shop", "idle")
    assert say("role", "list")[1].splitlines() == [
        "admin: everything",
        "idle may do nothing yet",
        "shop may publish,read topic default/o --prefix",
    ]
    roles = rows(say("role", "list", "--json")[1])["roles"]
    rule = {"verbs": ["publish", "read"], "kind": "topic", "name": "default/o", "prefix": True}
    assert roles == {"idle": [], "shop": [rule]}
    assert say("user", "show", "shop/ann")[1].splitlines() == [
        "shop/ann: roles shop, idle",
        "  shop may publish,read topic default/o --prefix",
        "  idle may do nothing yet",
    ]
    assert rows(say("user", "show", "shop/ann", "--json")[1])["roles"]["idle"] == []
    assert say("role", "show", "shop")[1].splitlines() == [
        "shop may publish,read topic default/o --prefix",
        "users: shop/ann",
    ]
    shown = rows(say("role", "show", "idle", "--json")[1])
    assert (shown["rules"], shown["users"]) == ([], ["shop/ann"])
    assert say("role", "show", "admin")[1] == "admin may do everything\nusers: none\n"
    assert "shop  publish,read topic default/o --prefix" in say("acl", "list")[1]
    listed = rows(say("acl", "list", "--role", "shop", "--json")[1])["rules"]
    assert listed == [{"role": "shop", **rule, "rule": "publish,read topic default/o --prefix"}]
    assert say("acl", "list", "--role", "idle")[1] == "no rules\n"
    say("user", "create", "new")
    code, out, _ = say("acl", "explain", "new", "list", "system")
    assert (code, out.splitlines()[1:]) == (1, [
        "it has no role; this would let it:",
        "  weir acl allow ROLE list system",
        "  weir user grant default/new ROLE",
    ])  # fmt: skip
    say("user", "revoke", "new")
    say("acl", "remove", "shop", "publish", "topic", "o", "--prefix")
    assert "shop may read topic default/o --prefix" in say("role", "list")[1]
    say("role", "delete", "idle")
    say("user", "take", "shop/ann", "shop")
    listed = rows(say("user", "list", "--json")[1])["users"]
    assert listed == [{"user": "shop/ann", "roles": []}]
    assert "mode open, version" in say("access", "status")[1]
    assert "topic: alter, consume" in say("acl", "verbs")[1]
    verbs = rows(say("acl", "verbs", "--json")[1])
    assert (verbs["namespace"], verbs["set"]) == (["create", "restore"], ["pull"])


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("acl", "allow", "r", "publish", "topic"), "name a topic, or give --everything"),
        (("acl", "allow", "r", "publish", "topic", "t", "--everything"), "it takes no name"),
        (("acl", "allow", "r", "publis", "topic", "t"), "with a topic there is alter"),
        (("acl", "allow", "admin", "publish", "topic", "t"), "make another role"),
        (("access", "mode", "shut"), "give open, watch or closed"),
        (("user", "create", "a/b/c"), "is not allowed"),
        (("user", "create", "ann", "--role", "none"), "weir role create none"),
        (("user", "show", "bob"), "no user bob"),
        (("role", "delete", "admin"), "no role admin"),
        (("role", "delete", "none"), "no role none"),
        (("role", "show", "none"), "no role none"),
        (("acl", "list", "--role", "none"), "no role none"),
    ],
)
def test_what_is_wrong_is_told(
    say: Say, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], error: str
) -> None:
    monkeypatch.setenv("WEIR_NEW_PASSWORD", "x")
    code, _, err = say(*words)
    assert code in (1, 2)
    assert error in err


def test_what_is_not_there_is_not_said_to_be_taken_away(
    say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_NEW_PASSWORD", "x")
    say("acl", "allow", "shop", "publish,read", "topic", "orders")
    say("acl", "allow", "shop", "read", "topic", "o", "--prefix")
    say("role", "create", "idle")
    say("user", "create", "ann", "--role", "shop")
    for words, error in (
        (("role", "delete", "shpo"), "no role shpo"),
        (("user", "take", "ann", "idle"), "user ann does not have role idle: it has role shop"),
        (("user", "take", "ann", "shop", "shpo"), "does not have role shpo"),
        (("user", "take", "bob", "shop"), "no user bob"),
        (("acl", "remove", "shpo", "read", "topic", "orders"), "no role shpo"),
        (("acl", "remove", "idle", "read", "topic", "orders"), "weir acl list --role idle"),
        (("acl", "remove", "shop", "read", "topic", "order"), "no rule lets role shop read topic"),
        (("acl", "remove", "shop", "read", "topic", "orders", "--prefix"), "no rule lets"),
        (("acl", "remove", "shop", "consume", "cluster", "orders:c"), "no rule lets"),
        (("acl", "remove", "shop", "consume", "topic", "orders"), "no rule lets"),
        (("acl", "remove", "shop", "rea", "topic", "orders"), "with a topic there is"),
        (("acl", "remove", "admin", "read", "topic", "orders"), "may do everything, always"),
    ):
        code, out, err = say(*words)
        assert (code, out, error in err) == (1, "", True), (words, err)
    assert rows(say("user", "show", "ann", "--json")[1])["roles"].keys() == {"shop"}
    assert say("role", "list")[1].splitlines()[1:] == [
        "idle may do nothing yet",
        "shop may publish,read topic default/orders",
        "shop may read topic default/o --prefix",
    ]
    assert say("acl", "remove", "shop", "read,consume", "topic", "default/orders")[0] == 0
    assert "shop may publish topic default/orders" in say("role", "list")[1]


@pytest.mark.parametrize("keys", [(), (b"another key of 32 bytes, or more"[:32],)])
def test_a_node_without_the_key_file_says_what_it_lacks(
    say: Say, monkeypatch: pytest.MonkeyPatch, keys: tuple[bytes, ...]
) -> None:
    """A broker runs there: to look for one, or at the firewall, would lead nowhere."""
    monkeypatch.setenv("WEIR_NEW_PASSWORD", "x")
    say("access", "init", "--user", "root")
    wrapped = KeyRing([b"k" * 32]).wrap(b"s" * 32, FALSE_SALTS, bytes(NONCE_BYTES))
    lacking = Vault(None, KeyRing(keys) if keys else None)
    monkeypatch.setattr(
        Access, "open_secret", lambda access, vault: lacking.unseal(wrapped, FALSE_SALTS)
    )
    monkeypatch.setattr(connection, "TIMEOUT_SECONDS", 0.7)
    code, _, err = say("user", "list", user="root", password="x")
    assert (code, "did not let this client in within 0.7 s: " in err) == (1, True), err
    what = "that key to the file" if keys else "set `access.key_file` to a copy of the file"
    assert what in err
    for misleading in ("firewall", "check that a broker", "no connection"):
        assert misleading not in err


def test_what_shards_are_waited_for_is_told_while_it_lasts(
    say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard that is away is waited for, for seconds."""
    monkeypatch.setenv("WEIR_NEW_PASSWORD", "x")
    say("access", "init", "--user", "root")
    say("user", "create", "ann")
    request = NetworkClient.request

    async def late(network: NetworkClient, *given: Any, **more: Any) -> Any:
        await asyncio.sleep(0.15)
        return await request(network, *given, **more)

    monkeypatch.setattr(NetworkClient, "request", late)
    monkeypatch.setattr(output, "LINE_SECONDS", 0.05)
    for words in (
        ("acl", "allow", "shop", "read", "topic", "orders"),
        ("user", "grant", "ann", "shop"),
        ("user", "take", "ann", "shop", "--json"),
        ("user", "password", "ann"),
        ("user", "revoke", "ann"),
        ("role", "delete", "shop"),
        ("access", "mode", "watch"),
        ("quota", "set", "namespace:default", "--topics", "9"),
        ("device", "forget", "orders", "7", "--yes"),
    ):
        code, out, err = say(*words)
        assert (code, "waiting until all shards keep to it: 0 s so far" in err) == (0, True), err
        assert "so far" not in out
    monkeypatch.setattr(output, "LINE_SECONDS", 9.0)
    assert say("user", "create", "bob")[2] == "", "what is quick says nothing"


def test_a_password_is_no_word_of_a_command(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_text("one more\n")
    file.chmod(0o644)
    code, _, err = say("user", "create", "ann", "--password-file", file)
    assert (code, "chmod 600" in err) == (2, True)
    file.chmod(0o600)
    assert say("user", "create", "ann", "--password-file", file)[0] == 0
    assert say("topic", "list", user="ann", password="one more")[0] == 0
    code, _, err = say("topic", "list", user="ann:one", password="x")
    assert (code, "an address has no password" in err) == (2, True)
    for words in (("topic", "list"), ("user", "create", "bob"), ("user", "password", "ann")):
        code, _, err = say(*words, "--password", "hunter22")
        assert (code, "others see the words" in err, "hunter22" in err) == (2, True, False)
    monkeypatch.delenv("WEIR_NEW_PASSWORD", raising=False)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    code, _, err = say("user", "password", "ann")
    assert (code, "WEIR_NEW_PASSWORD" in err) == (2, True)
    monkeypatch.setenv("WEIR_NEW_PASSWORD", "two")
    assert say("user", "password", "ann")[0] == 0
    assert "check the user" in say("topic", "list", user="ann", password="one more")[2]
    assert say("topic", "list", user="ann", password="two")[0] == 0
