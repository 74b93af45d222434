"""`weir context` and `--context`: what is kept, what verbs go by, and that no password is kept."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weir import sync, testing
from weir.cli.access.contexts import (
    BadContext,
    Context,
    Contexts,
    address_in_use,
    contexts_file,
    read_contexts,
    write_contexts,
)
from weir.cli.main import main, whole_command
from weir.client.access import AccessRule
from weir.client.arguments import parse_url
from weir.client.connection.credentials import split_user
from weir.tls.dialling import SecureHost

Say = Callable[..., tuple[int, str, str]]

FILE = """\
current = "prod"

[contexts.prod]
url = "weirs://broker1,broker2:6801"
user = "shop/ann"
ca = "/etc/weir & co/ca.pem"
certificate = "/c.pem"
key = "/k.pem"
server_name = "broker"
password_file = "/run/pass \\"word\\""

[contexts.dev]
url = "weir://localhost"
"""
PROD = Context(
    "weirs://broker1,broker2:6801", "shop/ann", "/etc/weir & co/ca.pem", "/c.pem", "/k.pem",
    "broker", '/run/pass "word"',
)  # fmt: skip


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where contexts of a test lie, which nothing else in the environment overrules."""
    for name in ("URL", "CONTEXT", "CA", "PASSWORD", "PASSWORD_FILE"):
        # Noted, so that it is put back, whatever a verb sets.
        monkeypatch.setenv(f"WEIR_{name}", "")
        monkeypatch.delenv(f"WEIR_{name}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "weir" / "contexts.toml"


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    def saying(*words: object) -> tuple[int, str, str]:
        code = main([*map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return saying


def told(out: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out)
    return found


# -- the file --------------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "new" / "contexts.toml"
    assert read_contexts(file) == Contexts()
    contexts = Contexts({"prod": PROD, "dev": Context("weir://localhost")}, "prod")
    write_contexts(file, contexts)
    assert file.read_text() == FILE
    assert read_contexts(file) == contexts
    assert [one.name for one in file.parent.iterdir()] == ["contexts.toml"]


def test_a_context_is_one_address() -> None:
    url, user = split_user(PROD.address)
    (host, port), (_, other) = parse_url(url)
    assert (user, str(host), port, other) == ("shop/ann", "broker1", 6800, 6801)
    assert isinstance(host, SecureHost)
    assert host.files == ("/etc/weir & co/ca.pem", "/c.pem", "/k.pem", "broker")
    # Taken apart, it is the context again.
    assert Context.of_address(PROD.address, password_file=PROD.password_file) == PROD
    assert Context("weir://[::1]:7", "a b").address == "weir://a%20b@[::1]:7"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('x = 1', "it has `current`"),
        ('current = 1', "it has `current`"),
        ("current = ", "contexts.toml: "),
        ("[contexts.a]", "needs a url"),
        ('[contexts.a]\nurl = "weir://h"\npassword = "hunter22"', "has no password"),
        ('[contexts.a]\nurl = "weir://ann:hunter22@h"', "user and files have lines"),
        ('[contexts.a]\nurl = "weirs://h?ca=x"', "user and files have lines"),
        ('[contexts.a]\nurl = "weir://h"\nca = "x"', "ca is of TLS"),
        ('[contexts.a]\nurl = "weir://h"\npassword_file = "x"', "needs a user"),
        ('[contexts.a]\nurl = "weirs://h"\nkey = "x"', "belong together"),
        ('[contexts.a]\nurl = "weir://h h"', "is no address"),
        ('[contexts.a]\nurl = "weir://h"\nport = "x"', "'port' is unknown"),
        ('[contexts.a]\nurl = 1', "table of texts"),
        ('[contexts."a b"]\nurl = "weir://h"', "is no name"),
        ("#" * 300_000, "over 262,144 bytes"),
    ],
)  # fmt: skip
def test_what_no_file_can_say(file: Path, text: str, error: str) -> None:
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(BadContext, match=error) as caught:
        read_contexts(file)
    assert "hunter22" not in str(caught.value)


def test_the_environment_is_no_part_of_a_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_CA", "/now.pem")
    assert Context.of_address("weirs://h").ca == ""
    assert Context.of_address("weirs://h", ca="/mine.pem").ca == "/mine.pem"
    assert Context.of_address("weirs://h?server_name=b").ca == ""


def test_paths_are_the_same_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ann")
    made = Context.of_address("weirs://ann@h?ca=ca.pem", password_file="~/password")
    assert (made.ca, made.password_file) == (str(tmp_path / "ca.pem"), "/home/ann/password")


# -- verbs -----------------------------------------------------------------------------------------


def test_contexts_are_added_used_shown_and_removed(say: Say, file: Path, tmp_path: Path) -> None:
    assert say("context", "list")[1] == "no contexts\n"
    code, out, _ = say("context", "add", "prod", "--url", "weirs://ann@h?ca=/ca.pem")
    assert (code, out) == (0, "context prod is weirs://ann@h?ca=/ca.pem\n")
    assert say("context", "add", "dev", "--url", "weir://d", "--user", "shop/bob")[0] == 0
    listed = told(say("context", "list", "--json")[1])
    assert listed["current"] == "prod", "the first is in use"
    assert listed["contexts"] == {
        "prod": {"url": "weirs://h", "user": "ann", "ca": "/ca.pem"},
        "dev": {"url": "weir://d", "user": "shop/bob"},
    }
    assert say("context", "list")[1].splitlines()[1:] == [
        "*  prod     weirs://h  ann",
        "   dev      weir://d   shop/bob",
    ]
    assert say("context", "use", "dev")[:2] == (0, "context dev is in use: weir://shop%2Fbob@d\n")
    assert say("context", "show")[1] == "url: weir://d\nuser: shop/bob\n"
    shown = told(say("context", "show", "prod", "--json")[1])
    assert (shown["current"], shown["address"]) == (False, "weirs://ann@h?ca=/ca.pem")
    assert say("context", "add", "third", "--url", "weir://t", "--use")[0] == 0
    assert read_contexts(file).current == "third"
    assert told(say("context", "remove", "third", "--json")[1])["current"] == ""
    assert say("context", "show")[0] == 2
    assert [*read_contexts(file).by_name] == ["prod", "dev"]
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("use", "no"), "no context 'no': there is none yet"),
        (("show", "no"), "no context 'no'"),
        (("remove", "no"), "no context 'no'"),
        (("add", "a b", "--url", "weir://h"), "is no name"),
        (("add", "a", "--url", "weir://ann:hunter22@h"), "an address has no password"),
        (("add", "a", "--url", "weir://ann@h", "--user", "bob"), "says user already"),
        (("add", "a", "--url", "http://h"), "is no address"),
        (("add", "a", "--url", "weir://h", "--ca", "x"), "ca is of TLS"),
        (("add", "a", "--url", "weir://h", "--password", "hunter22"), "others see the words"),
    ],
)
def test_what_is_wrong_is_told(say: Say, file: Path, words: tuple[str, ...], error: str) -> None:
    code, _, err = say("context", *words)
    assert code == 2
    assert error in err
    assert "hunter22" not in err
    assert not file.exists()


# -- what verbs go by ------------------------------------------------------------------------------


def test_every_verb_that_connects_takes_a_context() -> None:
    def walk(command: Any, path: str) -> list[tuple[str, set[str]]]:
        found = [(path, {name for one in command.params for name in one.opts})]
        for name, one in getattr(command, "commands", {}).items():
            found += walk(one, f"{path} {name}")
        return found

    options = dict(walk(whole_command(), "weir"))
    without = {path for path, names in options.items() if "--url" in names and "--context" not in
               names}  # fmt: skip
    assert without == {"weir context add"}
    assert sum("--context" in names for names in options.values()) > 60


def test_the_first_of_what_is_said_counts(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert contexts_file() == file
    assert address_in_use() == ""
    contexts = Contexts({"a": Context("weir://a"), "b": Context("weir://b", "ann")}, "a")
    write_contexts(file, contexts)
    assert address_in_use() == "weir://a"
    os.environ["WEIR_CONTEXT"] = "b"
    assert address_in_use() == "weir://ann@b"
    os.environ["WEIR_URL"] = "weir://c"
    assert address_in_use() == "weir://c"
    with pytest.raises(BadContext, match="no context 'x'"):
        address_in_use({"XDG_CONFIG_HOME": str(file.parents[1]), "WEIR_CONTEXT": "x"})


def test_a_closed_set_is_used_by_contexts(say: Say, file: Path, tmp_path: Path) -> None:
    secrets = {"root": "secret of root", "ann": "secret of ann"}
    for user, secret in secrets.items():
        (tmp_path / user).write_text(secret)
        (tmp_path / user).chmod(0o600)
    with testing.node() as node:
        with sync.connect(node.url) as w:
            w.create_topic("orders")
            w.access.create_user("root", secrets["root"], ["admin"])
            w.access.change_rules("shop", [AccessRule(("publish", "read"), "topic", "orders")])
            w.access.create_user("ann", secrets["ann"], ["shop"])
        with sync.connect(node.url.replace("//", "//root@"), password=secrets["root"]) as w:
            w.access.set_mode("closed")

        def as_user(*words: object) -> tuple[int, str, str]:
            # Each is a process of its own.
            os.environ.pop("WEIR_PASSWORD_FILE", None)
            return say(*words)

        for user in secrets:
            words = ("--user", user, "--password-file", tmp_path / user)
            assert say("context", "add", user, "--url", node.url, *words)[0] == 0
        assert "default/ann" in as_user("user", "list")[1]
        assert as_user("pub", "orders", "a", "--context", "ann")[0] == 0
        assert say("context", "use", "ann")[0] == 0
        assert as_user("tail", "orders", "--from", "earliest", "--no-follow")[1] == "0/0  a\n"
        assert "may not administer" in as_user("user", "list")[2]
        assert as_user("user", "list", "--context", "root")[0] == 0
        code, _, err = as_user("topic", "list", "--context", "root", "--url", node.url)
        assert (code, "not both" in err) == (2, True)
        assert "closed" in as_user("topic", "list", "--url", node.url)[2]
        code, out, _ = as_user("topic", "list", "--json")
        assert not any(secret in out + file.read_text() for secret in secrets.values())
        os.environ["WEIR_CONTEXT"] = "root"
        assert as_user("user", "list")[0] == 0
        os.environ["WEIR_PASSWORD_FILE"] = str(tmp_path / "ann")
        assert "user root" in say("user", "list")[2], "the environment goes before the context"
        os.environ["WEIR_PASSWORD"] = "wrong"
        assert "user root" in as_user("user", "list")[2], "the environment goes before the file"
