"""`weir quota`: what it sets, lists, shows and removes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from weir import sync, testing
from weir.cli.main import main
from weir.errors import QuotaExceeded
from weir.testing import Node

SHOP = "namespace:shop"


@pytest.fixture
def node() -> Iterator[Node]:
    with testing.node() as one:
        yield one


def said(capsys: pytest.CaptureFixture[str], node: Node, *arguments: str) -> tuple[int, str]:
    code = main(["quota", *arguments, "--url", node.url])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_quotas_are_set_shown_and_removed(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = said(capsys, node, "set", SHOP, "--bytes-in", "10M", "--topics", "1")
    assert (code, out) == (0, f"{SHOP}: bytes_in 10,485,760, topics 1\n")
    with sync.connect(node.url) as w:
        w.create_topic("shop/orders")
        with pytest.raises(QuotaExceeded, match="1 topics"):
            w.create_topic("shop/more")
    code, out = said(capsys, node, "list", "--json")
    (row,) = json.loads(out)["quotas"]
    assert row["limits"] == {"bytes_in": 10 << 20, "topics": 1}
    assert (row["entity"], row["used"]["topics"], row["throttled_ms"]) == (SHOP, 1, 0)
    _, out = said(capsys, node, "list")
    assert [line.split() for line in out.splitlines()][2] == [SHOP, "topics", "1", "1"]
    _, out = said(capsys, node, "show", SHOP)
    assert "topics 1 of 1" in out
    _, out = said(capsys, node, "set", SHOP, "--bytes-in", "none", "--json")
    assert json.loads(out)["limits"] == {"topics": 1}
    _, out = said(capsys, node, "remove", SHOP)
    assert out == f"removed: {SHOP}: topics 1\n"
    _, out = said(capsys, node, "show", SHOP)
    assert out == f"{SHOP} has no quotas\n"
    _, out = said(capsys, node, "list")
    assert out == "there are no quotas: usage is not limited\n"


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ((SHOP,), "name a quota"),
        ((SHOP, "--topics", "many"), "--topics many"),
        ((SHOP, "--bytes-in", "1.5M"), "--bytes-in 1.5M"),
        (("shop", "--topics", "1"), "namespace:NAME"),
    ],
)
def test_what_can_be_no_quota_is_said(
    node: Node, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], hint: str
) -> None:
    code, out = said(capsys, node, "set", *arguments)
    assert code != 0
    assert hint in out
