"""What clients of an office send, and what they tell of what they were given."""

from __future__ import annotations

import asyncio

import pytest

from weir import sync, testing
from weir.errors import UnknownTopic
from weir_lab.company.office import (
    Await,
    Office,
    Read,
    Report,
    Send,
    Stop,
    Value,
    packed,
    unpacked,
)


def test_a_message_says_who_sent_it_and_when() -> None:
    value = Value("all", "tianjin-office", 7, 123_456_789)
    assert len(packed(value, 200)) == 200
    assert unpacked(packed(value, 200).decode().rstrip()) == value


def test_readers_are_given_what_is_for_them() -> None:
    async def work(url: str) -> None:
        office = Office("tianjin-office")
        tags = ["tianjin", "hangzhou", "all"]
        try:
            sent = await office.obey(Send(url, "t", tags, 1_000, 0.03, 100))
            assert [unpacked(one.value).number for one in sent.confirms] == [*range(1, 31)]
            assert all(one.confirmed_ns > one.sent_ns for one in sent.confirms)
            assert await office.obey(Read([url, url], "t", ["tianjin", "all"], 1)) is not None
            assert (await office.obey(Await(20, 30.0))).is_complete
            given = (await office.obey(Report())).given
            assert [*given] == [f"{url}, reader 1", f"{url}, reader 2"]
            for rows in given.values():
                assert [unpacked(row.value).tag for row in rows] == ["tianjin", "all"] * 10
                assert all(row.given_ns > unpacked(row.value).sent_ns for row in rows)
            assert not (await office.obey(Await(21, 0.05))).is_complete
            await office.obey(Stop())
            assert (await office.obey(Report())).given == {}
        finally:
            await office.stop()

    with testing.node() as node:
        with sync.connect(node.url) as client:
            client.create_topic("t", 1, order="total")
        asyncio.run(work(node.url))


def test_what_a_reader_raises_is_told() -> None:
    async def work(url: str) -> None:
        office = Office("a")
        try:
            await office.obey(Read([url], "no-such-topic", ["all"], 1))
            with pytest.raises(UnknownTopic, match="no-such-topic"):
                await office.obey(Await(1, 30.0))
        finally:
            await office.stop()

    with testing.node() as node:
        asyncio.run(work(node.url))
