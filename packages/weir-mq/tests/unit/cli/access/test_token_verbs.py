"""`weir token`: keys, tokens that the set issues, and issuers elsewhere."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rigs.tokens import IDP, IDP_KEY, token_of
from weir import sync, testing
from weir.access.tokens import write_jwks
from weir.cli.doctor import checks
from weir.cli.main import main

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def node() -> Iterator[testing.Node]:
    """A closed set in which ann may publish to orders."""
    with testing.node() as node:
        with sync.connect(node.url) as w:
            w.create_topic("orders")
            w.create_topic("wages")
            w.access.create_user("root", "rr", ["admin"])
            rule = sync_rule("publish", "orders"), sync_rule("publish", "wages")
            w.access.change_rules("shop", add=rule)
            w.access.create_user("ann", "aa", ["shop"])
        with sync.connect(node.url.replace("//", "//root@"), password="rr") as w:
            w.access.set_mode("closed")
        yield node


def sync_rule(verb: str, topic: str) -> Any:
    from weir.client.access import AccessRule

    return AccessRule((verb,), "topic", topic)


@pytest.fixture
def say(
    node: testing.Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Say:
    """Return what a command returns and prints, as root, or by a token or a file with one."""

    def saying(*words: object, token: str = "", file: Path | None = None) -> tuple[int, str, str]:
        by_password = not token and file is None
        url = node.url.replace("//", "//root@") if by_password else node.url
        monkeypatch.setenv("WEIR_URL", url)
        for name, value in (
            ("WEIR_PASSWORD", "rr" if by_password else ""), ("WEIR_TOKEN", token),
            ("WEIR_TOKEN_FILE", "" if file is None else str(file)),
        ):  # fmt: skip
            monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
        code = main([*map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return saying


def test_a_token_of_the_set_is_issued_used_and_ended(say: Say, tmp_path: Path) -> None:
    assert "weir token key add" in say("token", "issue", "ann")[2]
    code, out, _ = say("token", "key", "add", "--json")
    key = json.loads(out)["key"]
    code, out, _ = say("token", "issue", "ann", "--for", "5m", "--topic", "orders")
    token = out.strip()
    assert (code, token.count(".")) == (0, 2)
    assert say("pub", "orders", "a", token=token)[0] == 0
    assert "no such topic" in say("pub", "wages", "a", token=token)[2]
    assert "may not administer" in say("user", "list", token=token)[2]

    file = tmp_path / "token"
    told = json.loads(say("token", "issue", "ann", "--out", file, "--json")[1])
    assert (told["file"], "token" in told) == (str(file), False)
    assert abs(told["ends"] - time.time() - 3_600) < 60
    assert file.stat().st_mode & 0o777 == 0o600
    assert say("pub", "wages", "a", file=file)[0] == 0
    file.chmod(0o644)
    assert "chmod 600" in say("pub", "wages", "a", file=file)[2]

    code, out, _ = say("token", "key", "list")
    assert key in out
    assert json.loads(say("token", "key", "list", "--json")[1])["keys"][0]["signs"] is True
    for words in ((f"{key}x",), (key, "--issuer", "https://elsewhere")):
        code, out, err = say("token", "key", "remove", *words)
        assert (code, out, "weir token key list" in err) == (1, "", True), "a typo removes nothing"
    assert say("pub", "orders", "b", token=token)[0] == 0
    assert say("token", "key", "remove", key)[1] == f"key {key} of this set is removed\n"
    assert "it says that it ends at" in say("pub", "orders", "a", token=token)[2]
    assert "tokens are not taken" in say("token", "key", "list")[1]


def test_tokens_of_another_issuer_are_taken(say: Say, tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_bytes(write_jwks([IDP_KEY.public("idp")]))
    added = say(
        "token", "key", "add", "--jwks", file, "--issuer", IDP, "--audience", "weir"
    )  # fmt: skip
    assert added[1] == f"tokens of {IDP} for weir are taken\n"
    token = token_of(time.time()).decode()
    assert say("pub", "orders", "a", token=token)[0] == 0
    listed = json.loads(say("token", "key", "list", "--json")[1])["keys"]
    assert [(one["issuer"], one["namespace"], one["signs"]) for one in listed] == [
        (IDP, "default", False)
    ]
    own = json.loads(say("token", "key", "add", "--json")[1])["key"]
    assert say("token", "key", "remove", own, "--issuer", IDP)[0] == 1, "that is the set's"
    assert say("token", "key", "remove", "idp")[0] == 1, "that is the other issuer's"
    assert say("token", "key", "remove", "--issuer", f"{IDP}/", "--all")[0] == 1
    assert say("pub", "orders", "a", token=token)[0] == 0
    assert say("token", "key", "remove", "--issuer", IDP, "--all")[0] == 0
    assert "this token is not accepted" in say("pub", "orders", "a", token=token)[2]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("key", "add", "--issuer", "x"), "name the file with its keys"),
        (("key", "add", "--jwks", "JWKS"), "give --issuer and --audience"),
        (("key", "remove"), "name a key, or give --all"),
        (("issue", "ann", "--for", "0s"), "give at least 1s"),
        (("issue", "bob"), "no user default/bob"),
    ],
)
def test_what_is_wrong_is_said(say: Say, words: tuple[str, ...], error: str) -> None:
    code, _, err = say("token", *words)
    assert code != 0
    assert error in " ".join(err.replace("│", " ").split())


def test_doctor_looks_whether_keys_open(
    node: testing.Node, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    say("token", "key", "add")
    root = node.url.replace("//", "//root@")
    monkeypatch.setattr(checks, "running", lambda patient: (root, 1))
    monkeypatch.setenv("WEIR_PASSWORD", "rr")
    found = checks.tokens(None)  # type: ignore[arg-type]  # nothing of it is looked at
    assert (found.state, found.found) == ("ok", "tokens are verified by 1 key")
    from weir.broker.metadata.security.token_keys import TokenKeyVault

    monkeypatch.setattr(TokenKeyVault, "opens", lambda *_: False)
    found = checks.tokens(None)  # type: ignore[arg-type]
    assert (found.state, "access.key_file" in found.advice) == ("fail", True)
