"""Topologies, and what relays are asked and told, as tests draw and write them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from weir.model.ids import LINEAGE_MAX, NODE_MAX, VOTER_MAX, Address
from weir.model.limits import SET_ID_MAX
from weir.protocol.client.declaration import opcode_of
from weir.protocol.client.nodes import ListSets, ReportSet, SetInfo, SetList
from weir.protocol.client.relays import AskRelay, DescribeRelay, RelayInfo, RelayTold, RelayTopic
from weir.protocol.client.topology import (
    ApplyTopology,
    CopyList,
    CopyRow,
    DescribeCopies,
    DescribeTopology,
    ForceRegistry,
    PromoteSet,
    TopologyState,
)
from weir.topology.sets import Caps, SetNode, SetRow, TopicTags, Topology

TOPICS, TAGS = ("default/a", "default/b"), ("", "x", "y")

#: Three core sets of one node, a tandem set and an access set.
COMPANY = """\
home = "beijing"

[[set]]
id = 1
name = "beijing"
tier = "core"
region = "north"
carrier = "telecom"
nodes = ["1=10.0.0.1:6800"]

[[set]]
id = 2
name = "mobile"
tier = "core"
nodes = ["2=10.0.0.2:6800"]

[[set]]
id = 3
name = "unicom"
tier = "core"
nodes = ["3=10.0.0.3:6800"]

[[set]]
id = 4
name = "shanghai"
tier = "tandem"
nodes = ["4=10.0.0.4:6800"]
upper = ["mobile", "beijing"]
[set.tags]
orders = ["hangzhou", ""]
"shop/prices" = "*"

[[set]]
id = 5
name = "hangzhou"
tier = "access"
nodes = ["5=[fd00::5]:6800", "6=host6:6800"]
upper = ["shanghai"]
tags = { orders = ["hangzhou"] }
caps = { hold_bytes = "10G", hold_hours = 2, disk_bytes = 5 }
"""


def row(id: int, tier: str = "core", upper: tuple[int, ...] = (), level: int = 0) -> SetRow:
    """Return a set of one node."""
    nodes = (SetNode(id + 1, f"host{id}", 6800),)
    return SetRow(id, f"set{id}", tier, level, nodes=nodes, upper=upper)  # type: ignore[arg-type]


_SOME_TAGS = st.none() | st.lists(st.sampled_from(TAGS), min_size=1, unique=True).map(tuple)
_FILTERS = st.none() | st.dictionaries(st.sampled_from(TOPICS), _SOME_TAGS, max_size=2).map(
    lambda rows: tuple(TopicTags(*one) for one in rows.items())
)


@st.composite
def topologies(draw: st.DrawFn, sets: int = 6) -> Topology:
    """Draw a topology that may be wrong: in its tree, its levels or its tags."""
    count = draw(st.integers(1, sets))
    rows = []
    for id in range(count):
        tier = draw(st.sampled_from(("core", "tandem", "access"))) if id else "core"
        is_core = tier == "core"
        upper = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=3, unique=True))
        rows.append(
            SetRow(
                id,
                f"set{id}",
                tier,  # type: ignore[arg-type]
                0 if is_core else draw(st.integers(1, 4)),
                draw(st.sampled_from(("", "north"))),
                nodes=(SetNode(id + 1, f"host{id}", 6800),),
                tags=None if is_core else draw(_FILTERS),
                caps=draw(st.sampled_from((Caps(), Caps(5, 6, 7)))),
                upper=() if is_core else tuple(upper),
            )
        )
    return Topology(0, tuple(rows))


@st.composite
def trees(draw: st.DrawFn, sets: int = 8) -> Topology:
    """Draw a topology in which nothing is wrong."""
    cores = draw(st.integers(1, 4))
    rows = [row(id) for id in range(cores)]
    for id in range(cores, draw(st.integers(cores, sets))):
        there = [one for one in rows if one.tier != "access"]
        upper = draw(st.lists(st.sampled_from(there), min_size=1, max_size=3, unique_by=id_of))
        level = 1 + max(one.level for one in upper)
        tier = draw(st.sampled_from(("tandem", "access")))
        rows.append(row(id, tier, tuple(one.id for one in upper), level))
    deepest = max((one.level for one in rows if one.tier == "tandem"), default=0)
    kept = [one for one in rows if one.tier != "access" or one.level <= deepest + 1]
    return Topology(draw(st.integers(0, cores - 1)), tuple(kept))


def id_of(one: SetRow) -> int:
    """Return the id of a set."""
    return one.id


_NATURAL = st.integers(0, (1 << 63) - 1)
_SMALL = st.integers(0, 255)
_ADDRESS = st.builds(Address, _SMALL, _SMALL, _NATURAL, _SMALL)
_SETS = st.builds(
    SetInfo, _NATURAL, st.text(), st.text(), st.lists(_NATURAL), _NATURAL, st.booleans()
)
_SIGNED = st.integers(-1, (1 << 63) - 1)
_RELAYED = st.builds(
    RelayTopic, st.text(), st.text(), *[_NATURAL] * 7, _SIGNED, _SIGNED, *[_NATURAL] * 3
)
_COPIES = st.builds(
    CopyRow, _NATURAL, st.text(), *[_NATURAL] * 7, _SIGNED, _NATURAL, _NATURAL,
    st.lists(_NATURAL, max_size=3),
)  # fmt: skip
REQUESTS: dict[type[Any], st.SearchStrategy[Any]] = {
    ApplyTopology: st.builds(ApplyTopology, _NATURAL, topologies(3)),
    DescribeTopology: st.builds(DescribeTopology),
    ReportSet: st.builds(ReportSet, st.integers(1, NODE_MAX), st.integers(0, SET_ID_MAX)),
    ListSets: st.builds(ListSets),
    DescribeCopies: st.builds(DescribeCopies, _NATURAL, st.integers(-1, (1 << 63) - 1)),
    ForceRegistry: st.builds(
        ForceRegistry,
        _NATURAL,
        st.integers(0, SET_ID_MAX),
        st.integers(1, LINEAGE_MAX),
        st.lists(st.integers(1, VOTER_MAX), min_size=1, max_size=3),
        st.booleans(),
    ),
    PromoteSet: st.builds(
        PromoteSet,
        st.integers(0, SET_ID_MAX),
        st.integers(1, LINEAGE_MAX),
        st.lists(st.integers(1, NODE_MAX), min_size=1, max_size=3),
    ),
    DescribeRelay: st.builds(DescribeRelay, st.text(max_size=20)),
    AskRelay: st.builds(AskRelay, _ADDRESS, st.binary(max_size=60)),
}
#: By kind, the opcode that it answers.
REPLIES: dict[type[Any], tuple[int, st.SearchStrategy[Any]]] = {
    TopologyState: (
        opcode_of(ApplyTopology),
        st.builds(TopologyState, _NATURAL, topologies(3)),
    ),
    SetList: (
        opcode_of(ListSets),
        st.builds(SetList, st.lists(_SETS), st.text(), st.lists(_NATURAL)),
    ),
    CopyList: (
        opcode_of(DescribeCopies),
        st.builds(
            CopyList,
            st.lists(_COPIES, max_size=3),
            st.booleans(),
            *[_NATURAL] * 3,
            st.text(),
            st.lists(st.tuples(_NATURAL, _NATURAL), max_size=3),
            st.integers(-1, SET_ID_MAX),
            _NATURAL,
            st.lists(_NATURAL, max_size=3),
            st.lists(st.tuples(_NATURAL, st.text()), max_size=3),
            st.booleans(),
        ),
    ),
    RelayInfo: (
        opcode_of(DescribeRelay),
        st.builds(
            RelayInfo,
            _NATURAL,
            _NATURAL,
            st.booleans(),
            st.lists(st.tuples(st.text(), _NATURAL), max_size=3),
            st.lists(st.tuples(_NATURAL, _NATURAL, _NATURAL), max_size=3),
            st.lists(_RELAYED, max_size=3),
            st.booleans(),
        ),
    ),
    # The frame holds one message, in one piece.
    RelayTold: (
        opcode_of(AskRelay),
        st.builds(RelayTold, _ADDRESS, st.just(()) | st.tuples(st.binary(min_size=1, max_size=60))),
    ),
}
