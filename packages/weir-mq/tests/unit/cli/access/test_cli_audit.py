"""`weir audit`: who did what, as lines and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from weir import sync, testing
from weir.cli.main import main
from weir.errors import Unauthorized
from weir.testing import Node


@pytest.fixture
def node() -> Iterator[Node]:
    with testing.node() as one:
        with sync.connect(one.url) as w:
            w.create_topic("_weir/audit")
            w.create_topic("shop/orders", partitions=2)
            w.delete_topic("shop/orders")
        yield one


def said(capsys: pytest.CaptureFixture[str], node: Node, *arguments: str) -> str:
    assert main(["audit", *arguments, "--url", node.url]) == 0
    return capsys.readouterr().out


def test_changes_are_shown_as_lines(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, node, "--outcome", "committed").splitlines()
    assert [line.partition("committed: ")[2] for line in lines] == [
        "anonymous from 127.0.0.1 create topic _weir/audit partitions=1 order=partition",
        "anonymous from 127.0.0.1 create topic shop/orders partitions=2 order=partition",
        "anonymous from 127.0.0.1 delete topic shop/orders id=2",
    ]


def test_changes_are_chosen_and_printed_as_json(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = said(capsys, node, "--verb", "delete", "--user", "anonymous", "--json").splitlines()
    row = json.loads(line)
    assert (row["kind"], row["resource"], row["who"]) == ("topic", "shop/orders", "anonymous")
    assert row["id"].startswith("change:")
    assert said(capsys, node, "--verb", "delete", "--user", "shop/ann", "--json") == ""
    assert said(capsys, node, "--since", "latest", "--verb", "delete") == ""


def test_an_outcome_that_there_is_not_is_told(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", "--outcome", "refsed", "--url", node.url]) == 2
    told = capsys.readouterr()
    assert (told.out, "'refsed': give committed, allowed, refused" in told.err) == ("", True)
    for outcome in ("committed", "allowed", "refused", "would-be-refused", "dropped"):
        said(capsys, node, "--outcome", outcome)


def test_only_brokers_write_to_the_topic(node: Node) -> None:
    with sync.connect(node.url) as w:
        with pytest.raises(Unauthorized, match="the brokers' own"):
            w.publish("_weir/audit", b"forged")
        with pytest.raises(Unauthorized, match="the brokers' own"):
            w.delete_topic("_weir/audit")
