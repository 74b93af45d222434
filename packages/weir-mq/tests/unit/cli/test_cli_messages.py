"""`weir pub`, `tail` and `sub` against a node in memory: what is chosen, and what is said."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from weir import connect, testing
from weir.cli import messages
from weir.cli.main import main
from weir.device import Client as DeviceClient
from weir.errors import TooLarge

Weir = Callable[..., tuple[int, str, str]]


@pytest.fixture
def node() -> Iterator[testing.Node]:
    with testing.node() as node:
        yield node


@pytest.fixture
def weir(node: testing.Node, capfdbinary: pytest.CaptureFixture[bytes]) -> Weir:
    """Return a function that runs a command: its exit code, what it printed, what it complained."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capfdbinary.readouterr()
        code = main([*arguments, "--url", node.url])
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    return run


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_keys_and_values_need_not_be_text_and_names_are(weir: Weir) -> None:
    weir("topic", "create", "t")
    code, out, _ = weir("pub", "t", "a\udcff", "--key", "k\udcfe", "--json")
    assert (code, json.loads(out)["settings"]["key"]) == (0, r"k\udcfe")
    code, out, _ = weir("tail", "t", "--no-follow", "--key", "k\udcfe")
    assert (code, out) == (0, "0/0  key=k\\xfe  a\\xff\n")
    for words in (["pub", "t", "a", "--tag", "n\udcff"], ["topic", "create", "n\udcff"]):
        code, out, err = weir(*words)
        assert (code, out, err) == (2, "", "n\\udcff is not UTF-8, as names and tags are\n")


def test_a_tail_picks_by_hub(weir: Weir, node: testing.Node) -> None:
    weir("topic", "create", "t")
    weir("pub", "t", "of a program")
    for hub in (0xA17, 7):
        host, port = node.url.removeprefix("weir://").rsplit(":", 1)
        with DeviceClient(host, int(port), hub, 1, "t") as one:
            one.publish_sequenced(b"%d" % hub, sn=3)
    for given in ("2583", "0xa17"):
        code, out, _ = weir("tail", "t", "--no-follow", "--hub", given)
        assert (code, out) == (0, "0/1  hub=0xa17/3  2583\n")
    _, out, _ = weir("tail", "t", "--no-follow", "--hub", "7", "-o", "json")
    (one,) = objects(out)
    assert (one["origin"]["hub"], one["origin"]["verified"]) == (7, False)
    assert weir("tail", "t", "--no-follow", "--hub", "door")[0] == 2


def test_a_tail_picks_by_key_tag_and_time(weir: Weir) -> None:
    weir("topic", "create", "t")
    for value, key, tag in (("a", "1", "x"), ("b", "2", "x"), ("c", "1", "y")):
        weir("pub", "t", value, "--key", key, "--tag", tag)

    def shown(*arguments: str) -> list[str]:
        code, out, err = weir("tail", "t", "--no-follow", "-o", "json", *arguments)
        assert code == 0, err
        return [one["value"] for one in objects(out)]

    assert shown("--key", "1") == ["a", "c"]
    assert shown("--key", "1", "--tag", "x") == ["a"]
    assert shown("--from", "last") == ["c"]
    assert shown("--from", "last", "--key", "2") == ["b"]
    assert shown("--from", "last", "--tag", "x") == ["b"]
    assert shown("--from", "last", "--key", "nobody") == []
    assert shown("--from", "-1h") == ["a", "b", "c"]
    assert shown("--from", "2000-01-01") == ["a", "b", "c"]
    assert shown("--from", "1") == ["b", "c"]
    code, _, err = weir("tail", "t", "--from", "noon")
    assert (code, "an offset from 0 on, or a time as in -1h" in err) == (2, True)


def test_a_cluster_is_consumed_and_acked(weir: Weir) -> None:
    weir("topic", "create", "t")
    weir("pub", "t", "a", "b", "c")
    taken = weir("sub", "t", "--cluster", "crew", "-n", "2", "-o", "json")
    assert [one["value"] for one in objects(taken[1])] == ["a", "b"]
    assert json.loads(weir("cluster", "lag", "t", "crew", "--json")[1])["lag"] == 1
    assert weir("sub", "t", "--cluster", "crew", "-n", "1")[1] == "0/2  c\n"
    code, out, _ = weir("cluster", "seek", "t", "crew", "--to", "earliest", "--json")
    assert (code, json.loads(out)["lag"]) == (0, 3)


def test_sub_takes_several_topics_and_begins_a_new_cluster_where_it_is_told_to(
    weir: Weir,
) -> None:
    for topic in ("a.1", "a.2", "b"):
        weir("topic", "create", topic)
        weir("pub", topic, topic)
    code, out, _ = weir("sub", "a.*", "b", "--cluster", "all", "-n", "3", "-o", "json")
    assert code == 0
    assert {one["value"] for one in objects(out)} == {"a.1", "a.2", "b"}
    weir("pub", "b", "new")
    taken = weir("sub", "b", "--cluster", "late", "--from", "last", "-n", "1")[1]
    assert taken.endswith("new\n")
    weir("pub", "b", "newer")
    taken = weir("sub", "b", "--cluster", "late", "--from", "earliest", "-n", "1")[1]
    assert taken.endswith("newer\n")
    for start, why in (("7", "weir cluster seek takes it"), ("soon", "give earliest, latest")):
        code, _, err = weir("sub", "b", "--cluster", "c", "--from", start)
        assert code == 2
        assert why in " ".join(err.split())


def test_headers_and_whole_files_are_published(weir: Weir, tmp_path: Path) -> None:
    weir("topic", "create", "t")
    file = tmp_path / "large"
    file.write_bytes(bytes(9_000_000))
    code, out, err = weir("pub", "t", "--file", str(file), "--header", "kind=zeros")
    assert (code, out) == (0, "t/0: offset 0\n"), err
    (row,) = objects(weir("tail", "t", "--no-follow", "-o", "json", "-n", "1")[1])
    assert row["headers"] == [{"name": "kind", "value": "zeros"}]
    assert row.get("value_bytes", len(row["value"] or "")) == 9_000_000
    assert "write NAME=VALUE" in weir("pub", "t", "x", "--header", "kind")[2]
    assert "not both" in weir("pub", "t", "x", "--file", str(file))[2]


def test_who_stops_a_pub_is_told_how_many_are_published(
    weir: Weir, monkeypatch: pytest.MonkeyPatch
) -> None:
    weir("topic", "create", "t")

    async def lines() -> AsyncIterator[bytes]:
        yield b"one"
        await asyncio.sleep(0.3)
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(30)

    monkeypatch.setattr(messages, "_lines", lines)
    code, out, err = weir("pub", "t")
    assert (code, out, err) == (130, "", "1 message was published before it was stopped\n")


def test_an_error_in_the_middle_says_how_many_are_published(
    weir: Weir, node: testing.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    weir("topic", "create", "t")

    async def lines() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"
        async with asyncio.timeout(30), connect(node.url) as other:
            while (await other.positions("t"))[1] != [2]:
                await asyncio.sleep(0)
        raise TooLarge("a line is too long")

    monkeypatch.setattr(messages, "_lines", lines)
    code, out, err = weir("pub", "t")
    assert (code, out) == (1, "")
    said, why = err.splitlines()
    assert said.endswith("published before it failed:")
    assert said == "2 messages were published before it failed:"
    assert why == "a line is too long"


def test_messages_are_published_for_later_and_for_a_while(weir: Weir, node: testing.Node) -> None:
    weir("topic", "create", "t")
    for value, when in (("late", ("--delay", "1h")), ("short", ("--ttl", "1m")), ("now", ())):
        assert weir("pub", "t", value, *when)[0] == 0
    assert weir("pub", "t", "noon", "--due", "2020-01-01T12:00")[0] == 0, "it is due already"
    node.advance(61)

    def taken(count: int) -> list[str]:
        return [one["value"] for one in objects(weir("sub", "t", *options, "-n", str(count))[1])]

    options = ("--cluster", "c", "-o", "json")
    assert taken(2) == ["now", "noon"]
    listed = json.loads(weir("cluster", "list", "t", "--json")[1])["clusters"][0]
    assert [listed[name] for name in ("mode", "lag", "delayed", "held_back")] == ["shared", 1, 1, 0]
    header, row = weir("cluster", "list", "t")[1].splitlines()[:2]
    assert header.split("  ")[0] == "CLUSTER"
    assert row.split()[:2] == ["c", "shared"]
    node.advance(3_600)
    assert taken(1) == ["late"]


def test_a_time_that_is_none_is_told_before_anything_is_read(weir: Weir) -> None:
    for wrong, advice in (
        (("--delay", "soon"), "no duration"),
        (("--due", "noon"), "is no time"),
        (("--delay", "1h", "--due", "2030-01-01"), "not both"),
        (("--delay", "1h", "--ttl", "1m"), "expire before it is due"),
    ):
        code, _, err = weir("pub", "t", "x", *wrong)
        assert code != 0
        assert advice in " ".join(err.split())


def test_a_cluster_of_keys_is_told_from_a_shared_one(weir: Weir) -> None:
    weir("topic", "create", "t")
    weir("pub", "t", "x", "--key", "a")
    assert weir("sub", "t", "--cluster", "c", "--mode", "keyed", "-n", "1")[0] == 0
    code, _, err = weir("sub", "t", "--cluster", "c", "-n", "1")
    assert (code, "keyed" in err) == (1, True)
