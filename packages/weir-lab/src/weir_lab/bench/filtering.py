"""Reads of one tag among several: what moves and what is read from disk, beside what matches.

Two topics hold the same messages. In `mixed` each batch has all tags by turns, in `runs` one tag
goes on for thousands of messages. The node is started anew before each topic is read, so the log's
cache is empty at first, and then once more: what it took from its page cache counts as read. What
matches are the values and tags of messages with the wanted tag.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from weir import sync
from weir.codec import total
from weir.errors import WeirError
from weir.model.batch import split
from weir.spark.blocking_client import BlockingClient, ask
from weir.spark.options import Options
from weir.testing.nodes import Node, running_node, start_node
from weir_lab.bench.bounds import check_bounds

SHAPES = ("mixed", "runs")
_BATCH = 10_000
#: Messages of one tag that follow each other in `runs`.
_RUN = 100_000
_ANSWER_BYTES = 4 << 20
_DEADLINE_S = 120.0
Progress = Callable[[int], None]


class Settings(msgspec.Struct, frozen=True):
    """What to measure: so many messages of `size` bytes, with so many tags, in each topic."""

    tags: int = 10
    messages: int = 2_000_000
    size: int = 100
    folder: str | None = None

    def check(self) -> None:
        """Raise `ValueError` for what cannot be measured."""
        check_bounds(
            tags=(self.tags, 2, 1_000), messages=(self.messages, 10 * self.tags, 100_000_000),
            size=(self.size, 1, 100_000),
        )  # fmt: skip


class Shape(msgspec.Struct, frozen=True):
    """Of a topic: bytes of batches that moved, and bytes that the node read, both over the bytes
    that match; and messages that were passed or returned a second, at first and once more.
    """

    shape: str
    bytes_ratio: float
    disk_ratio: float
    scanned_per_s: float
    again_per_s: float
    matching: int


class Result(msgspec.Struct, frozen=True):
    """Both topics."""

    shapes: list[Shape]


class _Read(msgspec.Struct, frozen=True):
    """What one read of a topic took."""

    moved: int
    matching_bytes: int
    matching: int
    seconds: float


def measure(settings: Settings, progress: Progress) -> Result:
    """Fill both topics, and read one tag of each; `progress` is told how many messages are done.

    Raises `ValueError`, and `WeirError` where a read did not return each message of the tag once.
    """
    settings.check()
    found = []
    with tempfile.TemporaryDirectory(prefix="weir-bench-", dir=settings.folder) as name:
        data = Path(name) / "data"
        with running_node(data) as node, sync.connect(node.url) as client:
            for number, shape in enumerate(SHAPES):
                _fill(settings, client, shape)
                progress((number + 1) * settings.messages)
        for shape in SHAPES:
            with start_node(data, Path(name)) as node:
                found.append(_shape(settings, node, shape))
    return Result(found)


def tags_of(settings: Settings, shape: str, first: int, count: int) -> list[str]:
    """Return the tags of `count` messages from number `first` on."""
    run = 1 if shape == "mixed" else min(_RUN, max(settings.messages // (2 * settings.tags), 1))
    return [f"tag{at // run % settings.tags}" for at in range(first, first + count)]


def _fill(settings: Settings, client: sync.Client, topic: str) -> None:
    client.create_topic(topic)
    with client.producer(topic) as producer:
        for first in range(0, settings.messages, _BATCH):
            count = min(_BATCH, settings.messages - first)
            values = [os.urandom(settings.size) for _ in range(count)]
            producer.send_many(values, tags=tags_of(settings, topic, first, count))


def _shape(settings: Settings, node: Node, shape: str) -> Shape:
    pids = _with_children(node.pid)
    before = _bytes_read(pids)
    first = _read(settings, node, shape)
    read = _bytes_read(pids) - before
    again = _read(settings, node, shape)
    expected = sum(
        tags_of(settings, shape, at, min(_BATCH, settings.messages - at)).count("tag0")
        for at in range(0, settings.messages, _BATCH)
    )
    for one in (first, again):
        if one.matching != expected:
            raise WeirError(f"{shape}: {one.matching} of {expected} messages of tag0 were read")
    return Shape(
        shape, first.moved / first.matching_bytes, read / first.matching_bytes,
        settings.messages / first.seconds, settings.messages / again.seconds, expected,
    )  # fmt: skip


def _read(settings: Settings, node: Node, topic: str) -> _Read:
    options = Options.parse({"topic": topic, "url": node.url})

    def read(client: BlockingClient) -> _Read:
        address = client.describe(topic).addresses[0]
        offset = moved = matching_bytes = matching = 0
        busy = 0.0
        while offset < settings.messages:
            began = time.perf_counter()
            answer = client.fetch(address, offset, _ANSWER_BYTES, 0, False, ("tag0",))
            busy += time.perf_counter() - began
            moved += total(answer.batches)
            offset = answer.next_offset
            for payload in answer.batches:
                for batch in split(payload, address.group):
                    found = [one for one in batch.messages() if one.tag == "tag0"]
                    matching += len(found)
                    matching_bytes += sum(len(one.value) + len(one.tag or "") for one in found)
        return _Read(moved, matching_bytes, matching, busy)

    return ask(options.hosts, read, _DEADLINE_S)


def _with_children(pid: int) -> list[int]:
    """Return a process and all that it started."""
    found = [pid]
    for thread in os.listdir(f"/proc/{pid}/task"):
        words = Path(f"/proc/{pid}/task/{thread}/children").read_text(encoding="ascii").split()
        found += [one for child in words for one in _with_children(int(child))]
    return found


def _bytes_read(pids: Sequence[int]) -> int:
    """Return how many bytes processes have read by system calls, the page cache included."""
    lines = (Path(f"/proc/{pid}/io").read_text(encoding="ascii") for pid in pids)
    return sum(int(line.split()[1]) for line in lines)
