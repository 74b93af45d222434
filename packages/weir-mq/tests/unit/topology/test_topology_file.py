"""The topology's file: what is read, and what is said of what cannot be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigs.topologies import COMPANY
from weir.model.limits import SETS_MAX, TOPOLOGY_FILE_BYTES_MAX
from weir.topology.file import read
from weir.topology.sets import Caps, SetNode, SetRow, TopicTags, Topology


def said(text: str) -> list[str]:
    """Return what is wrong, each with its line."""
    found = read(text)
    return [f"{found.lines.of(one)}: {one.text}" for one in found.problems]


def test_a_file_is_read() -> None:
    found = read(COMPANY)
    assert found.problems == ()
    core = [
        SetRow(1, "beijing", "core", 0, "north", "telecom", (SetNode(1, "10.0.0.1", 6800),)),
        SetRow(2, "mobile", "core", nodes=(SetNode(2, "10.0.0.2", 6800),)),
        SetRow(3, "unicom", "core", nodes=(SetNode(3, "10.0.0.3", 6800),)),
    ]
    orders = "default/orders"
    tandem = SetRow(
        4, "shanghai", "tandem", 1, nodes=(SetNode(4, "10.0.0.4", 6800),),
        tags=(TopicTags(orders, ("hangzhou", "")), TopicTags("shop/prices")), upper=(2, 1),
    )  # fmt: skip
    access = SetRow(
        5, "hangzhou", "access", 2, nodes=(SetNode(5, "fd00::5", 6800), SetNode(6, "host6", 6800)),
        tags=(TopicTags(orders, ("hangzhou",)),), caps=Caps(10 << 30, 7200, 5), upper=(4,),
    )  # fmt: skip
    assert found.topology == Topology(1, (*core, tandem, access))


def test_home_is_the_first_core_set_unless_it_is_named() -> None:
    text = COMPANY.replace('home = "beijing"\n', "")
    assert read(text).topology == read(COMPANY).topology
    other = read(COMPANY.replace('home = "beijing"', 'home = "unicom"')).topology
    assert other is not None
    assert other.home == 3


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ('upper = ["shanghai"]', 'upper = ["shangha"]', "38: upper names 'shangha', and"),
        ("id = 2", "id = true", "12: id is True: give a number"),
        ("id = 2", "id = 65536", "12: id is 65536: give a number from 0 to 65,535"),
        ("id = 2", "id = 1", "12: set beijing has the id 1 already"),
        ('name = "hangzhou"', 'name = "beijing"', "35: the name beijing stands twice"),
        ('name = "hangzhou"', 'name = "a b"', "35: name 'a b' is not allowed"),
        ('id = 2\nname = "mobile"', "id = 2", "11: it has no name: each set has id"),
        ('tier = "access"', 'tier = "edge"', "36: tier is 'edge': there are core, tandem, access"),
        ("2=10.0.0.2", "1=10.0.0.2", "15: node 1 stands in set beijing already"),
        ("2=10.0.0.2", "2=10.0.0.1", "15: node 2=10.0.0.1:6800 has the address of node 1"),
        ("2=10.0.0.2:6800", "10.0.0.2:6800", "15: nodes has '10.0.0.2:6800': write NUMBER="),
        ("2=10.0.0.2:6800", "0=10.0.0.2:6800", "15: nodes has '0=10.0.0.2:6800': nodes are"),
        ("2=10.0.0.2:6800", "2=10.0.0.2:0", "15: nodes has '2=10.0.0.2:0': nodes are"),
        ('carrier = "telecom"', 'carier = "x"', "8: a set has no 'carier'"),
        ('home = "beijing"', 'home = "nowhere"', "1: home is 'nowhere'"),
        ('home = "beijing"', 'home = "hangzhou"', "0: home is set 5, which is no core set"),
        ('home = "beijing"', "size = 1", "1: there is no 'size'"),
        ("hold_hours = 2", "hold_days = 2", "40: caps has no 'hold_days'"),
        ("hold_hours = 2", "hold_hours = -1", "40: caps has hold_hours = -1"),
        ('"10G"', '"10 G"', "40: caps has hold_bytes = '10 G'"),
        ("disk_bytes = 5", "disk_bytes = 9223372036854775808", "40: caps has disk_bytes = 9"),
        ('orders = ["hangzhou"] }', "orders = [] }", "39: tags of topic orders: give a list"),
        ('orders = ["hangzhou"] }', '"a/b/c" = "*" }', "39: tags has a namespace"),
        (
            'orders = ["hangzhou"] }',
            'orders = ["hangzhou", "x"] }',
            "39: its upper shanghai lacks tags x of topic default/orders",
        ),
        (
            'orders = ["hangzhou"] }',
            'orders = "*" }',
            "39: its upper shanghai lacks tags * of topic default/orders",
        ),
        (
            "tags = { orders",
            "tags = { sales",
            "39: its upper shanghai lacks topic default/sales",
        ),
        ('tags = { orders = ["hangzhou"] }\n', "", "33: its upper shanghai lacks topics"),
        ('upper = ["shanghai"]\n', "", "33: an access set pulls from others"),
        (
            '["mobile", "beijing"]',
            '["hangzhou"]',
            "28: hangzhou is an access set, from which no set pulls",
        ),
        ('["mobile", "beijing"]', '["shanghai"]', "28: the uppers form a cycle: shanghai → shangh"),
        ('["mobile", "beijing"]', '["mobile", "mobile"]', "28: a set stands twice in upper"),
        ('tier = "tandem"', 'tier = "tandem"\nlevel = 0', "27: a tandem set has level 1 or more"),
        ('tier = "access"', 'tier = "access"\nlevel = 1', "37: it has level 1, and its upper shan"),
        ('tier = "access"', 'tier = "access"\nlevel = 9', "37: it has level 9, and the last level"),
        ('tier = "access"', 'tier = "access"\nlevel = "2"', "37: level is '2': give a number"),
        ('region = "north"', "region = 5", "7: region is 5: give it in quotes"),
        ('upper = ["shanghai"]', 'upper = "shanghai"', "38: upper is no list"),
        ('tier = "access"', 'tier = "core"', "38: a core set pulls from no other"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(before: str, after: str, expected: str) -> None:
    assert COMPANY.count(before) == 1
    found = said(COMPANY.replace(before, after))
    assert any(one.startswith(expected) for one in found), found


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: "home = ", "it is no TOML: "),
        (lambda: "[[set]", "it is no TOML: "),
        (lambda: "a = " + "[" * 5_000, "it is no TOML: "),
        (lambda: "", "it has no sets: "),
        (lambda: "set = 5", "it has no sets: "),
        (lambda: "[[set]]\n" * (SETS_MAX + 1), "1,025 sets: there can be 1,024 at most"),
        (lambda: "#" * (TOPOLOGY_FILE_BYTES_MAX + 1), "the file is longer than"),
        (lambda: '[[set]]\nid = 1\nname = "a"\ntier = "tandem"', "there is no core set"),
    ],
)
def test_what_is_no_topology_is_refused(make: Callable[[], str], expected: str) -> None:
    (problem, *_) = read(make()).problems
    assert problem.text.startswith(expected)


def test_so_many_sets_fit() -> None:
    core = '[[set]]\nid = 0\nname = "core"\ntier = "core"\nnodes = ["1=c:1"]\n'
    others = (
        f'[[set]]\nid = {n}\nname = "n{n}"\ntier = "access"\nnodes = ["{n + 1}=h{n}:1"]\n'
        'upper = ["core"]\n'
        for n in range(1, SETS_MAX)
    )
    found = read(core + "".join(others))
    assert found.problems == ()
    assert found.topology is not None
    assert len(found.topology) == SETS_MAX


def test_a_topology_that_is_too_large_to_keep_is_refused() -> None:
    tags = ", ".join(f'"{n:0255}"' for n in range(2_200))
    found = read(COMPANY.replace('orders = ["hangzhou", ""]', f'orders = ["hangzhou", {tags}]'))
    (problem,) = found.problems
    assert problem.text.startswith("the topology has 565,721 bytes, and 524,288 at most are kept")


@given(st.text() | st.text(alphabet='[]set=".{},\n home0123456789#', max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    found = read(text)
    assert (found.topology is not None) or found.problems


@given(st.integers(0, len(COMPANY)), st.integers(0, 60), st.text(max_size=8))
def test_any_change_of_a_file_is_read_or_refused(at: int, size: int, text: str) -> None:
    found = read(COMPANY[:at] + text + COMPANY[at + size :])
    assert (found.topology is not None) or found.problems
