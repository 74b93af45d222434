"""Requests and replies about barriers, marks and offsets, as tests draw them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from weir.protocol.client import messages as m
from weir.protocol.client.declaration import opcode_of

NATURAL = st.integers(0, (1 << 63) - 1)
PAIRS = st.lists(st.tuples(NATURAL, NATURAL), max_size=3)
ROWS = st.lists(st.tuples(NATURAL, NATURAL, NATURAL), max_size=3)
SET = st.lists(NATURAL, max_size=4).map(tuple)
ROSTER, ENDS = PAIRS.map(tuple), ROWS.map(tuple)

REQUESTS: dict[type[Any], st.SearchStrategy[Any]] = {
    m.AskBarriers: st.builds(m.AskBarriers, NATURAL, NATURAL, NATURAL, st.booleans()),
    m.AwaitMark: st.builds(m.AwaitMark, NATURAL, NATURAL, NATURAL, NATURAL),
    m.SubscribeMarks: st.builds(m.SubscribeMarks, NATURAL, NATURAL, st.booleans()),
}
REPLIES: dict[type[Any], tuple[int, st.SearchStrategy[Any]]] = {
    m.OrderMark: (
        opcode_of(m.AwaitMark),
        st.builds(m.OrderMark, *[NATURAL] * 3, PAIRS, NATURAL, st.booleans()),
    ),
    m.SetMark: (
        opcode_of(m.SubscribeMarks),
        st.builds(m.SetMark, *[NATURAL] * 3, ROWS, SET, ROSTER, ENDS),
    ),
    m.Barriers: (
        opcode_of(m.AskBarriers),
        st.builds(m.Barriers, NATURAL, ROWS, ROSTER, st.booleans(), ENDS),
    ),
    m.LocatedOffsets: (
        opcode_of(m.LocateOffsets),
        st.builds(
            m.LocatedOffsets,
            st.lists(st.tuples(*[NATURAL] * 6), max_size=3),
            st.lists(st.tuples(*[NATURAL] * 3), max_size=3),
        ),
    ),
}
