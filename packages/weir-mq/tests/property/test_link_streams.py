"""Streams between nodes, cut anywhere, and garbage on them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import RemoteProtocolError
from weir.model.ids import NODE_MAX
from weir.model.limits import LOGS_MAX
from weir.protocol import link

NATURAL = st.integers(0, 2**63 - 1)
TEXT = st.text(max_size=20)
GROUP = st.integers(0, 2**64 - 1)
CUTS = st.lists(st.integers(0, 10_000), max_size=12)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    ends = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[a:b] for a, b in pairwise(ends)]


LINK_FRAMES = st.lists(st.tuples(st.integers(0, 255), GROUP, st.binary(max_size=300)), max_size=8)


@given(LINK_FRAMES, CUTS)
def test_link_frames_do_not_depend_on_the_cuts(
    frames: list[tuple[int, int, bytes]], cuts: list[int]
) -> None:
    sent = b"".join(b"".join(link.encode(*frame)) for frame in frames)
    stream, found = link.LinkStream(), []
    for part in cut(sent, cuts):
        found += stream.receive(part)
        assert stream.pending <= len(sent)
    assert [(f.kind, f.group, bytes(f.body)) for f in found] == frames
    assert stream.pending == 0


GREETING_NODE, SHARD = st.integers(1, NODE_MAX), st.integers(0, LOGS_MAX - 1)
SHARDS, PORT = st.integers(1, LOGS_MAX), st.integers(0, 65_535)
HELLO = st.builds(
    link.LinkHello, *[NATURAL] * 3, GREETING_NODE, SHARD, SHARDS, SHARDS, NATURAL, NATURAL,
    st.sampled_from(link.Lane), GREETING_NODE, SHARD, TEXT, PORT,
)  # fmt: skip
ANSWER = st.builds(
    link.LinkAnswer, NATURAL, TEXT, GREETING_NODE, SHARD, SHARDS, NATURAL, NATURAL,
    st.lists(PORT, max_size=3).map(tuple),
)  # fmt: skip


@given(HELLO, ANSWER, CUTS)
def test_greetings_come_back_as_they_went(
    hello: link.LinkHello, answer: link.LinkAnswer, cuts: list[int]
) -> None:
    for said, read in ((hello, link.decode_hello), (answer, link.decode_answer)):
        stream = link.Greeting()
        *_, body = [stream.receive(part) for part in cut(link.encode_greeting(said), cuts) if part]
        assert body is not None
        assert read(body) == said


@given(st.binary(max_size=200), CUTS)
def test_any_link_is_greetings_and_frames_or_the_peers_fault(data: bytes, cuts: list[int]) -> None:
    for first, stream in ((b"", link.LinkStream()), (b"\3\0", link.Greeting())):
        try:
            for part in cut(first + data, cuts):
                stream.receive(part)
        except RemoteProtocolError:
            continue
    for read in (link.decode_hello, link.decode_answer):
        with pytest.raises(RemoteProtocolError):
            read(data[:3])
