"""What can be wrong with a topology, and which losses of sets it does not survive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import msgspec

from weir.errors import BadName
from weir.model.limits import SETS_MAX, TAG_BYTES_MAX, TOPOLOGY_BYTES_MAX
from weir.model.topic import check_name, split_name
from weir.topology.sets import SetRow, TopicTags, Topology

#: What is wrong in one field of all sets together says so of so many of them.
_SHOWN_MAX = 8


class Problem(NamedTuple):
    """Something wrong with set number `at` of the topology (-1: with the whole), in its field
    `key`. A warning is no reason to refuse it.
    """

    text: str
    at: int = -1
    key: str = ""
    is_warning: bool = False


def check(topology: Topology) -> list[Problem]:
    """Return all that is wrong, and no warning. What needs a tree is looked at only in one."""
    if len(topology) > SETS_MAX:
        return [Problem(f"{len(topology):,} sets: there can be {SETS_MAX:,} at most")]
    size = len(msgspec.msgpack.encode(topology))
    if size > TOPOLOGY_BYTES_MAX:
        return [
            Problem(
                f"the topology has {size:,} bytes, and {TOPOLOGY_BYTES_MAX:,} at most are kept: "
                "name fewer topics and tags, or let a set have all (leave out its tags)"
            )
        ]
    if not topology.core():
        return [Problem('there is no core set: one at least has tier = "core"')]
    found = [*_names(topology), *_nodes(topology), *_tags(topology), *_uppers(topology)]
    if not found:
        found = [*_cycles(topology)] or [*_levels(topology), *_coverage(topology)]
    home = topology.by_id(topology.home)
    if home is None or home.tier != "core":
        found.append(Problem(f"home is set {topology.home}, which is no core set"))
    return found


def losses(topology: Topology) -> list[Problem]:
    """Return a warning for each set whose loss stops others, of a topology that `check` passes."""
    core = topology.core()
    found = []
    for at, lost in enumerate(topology.sets):
        cut = _cut_off(topology, lost.id)
        if lost.tier == "core" and len(core) < 3:
            found.append(_of_core(topology, at, lost, len(core)))
        elif cut:
            names = ", ".join(cut[:_SHOWN_MAX]) + ", ..." * (len(cut) > _SHOWN_MAX)
            text = (
                f"its loss is not survived: it cuts {names} off from the core; give each a second "
                "upper"
            )
            found.append(Problem(text, at, "upper", True))
    return found


def _of_core(topology: Topology, at: int, lost: SetRow, core: int) -> Problem:
    if core == 1:
        text = (
            "its loss is not survived: it is the only core set; three core sets go on without any "
            "one of them"
        )
    elif lost.id == topology.home:
        text = (
            "its loss is not survived: of two core sets all votes are at home; three go on without "
            "any one of them"
        )
    else:
        text = "its loss leaves one core set, and no copy elsewhere"
    return Problem(text, at, "tier", True)


def _cut_off(topology: Topology, lost: int) -> list[str]:
    """Return the names of the sets that reach no core set any more once one set is lost."""
    reached = {one.id for one in topology.core() if one.id != lost}
    cut = []
    for one in sorted(topology.sets, key=lambda one: one.level):
        if one.tier == "core" or one.id == lost:
            continue
        if reached.isdisjoint(one.upper):
            cut.append(one.name)
        else:
            reached.add(one.id)
    return cut


# -- each by itself -------------------------------------------------------------------------------


def _names(topology: Topology) -> Iterator[Problem]:
    ids: dict[int, str] = {}
    names: set[str] = set()
    for at, one in enumerate(topology.sets):
        if one.id in ids:
            text = f"set {ids[one.id]} has the id {one.id} already: give each its own"
            yield Problem(text, at, "id")
        if one.name in names:
            yield Problem(f"the name {one.name} stands twice: give each set its own", at, "name")
        ids.setdefault(one.id, one.name)
        names.add(one.name)
        for what in ("name", "region", "carrier"):
            value = getattr(one, what)
            if value or what == "name":
                yield from _checked(partial(check_name, value, what), at, what)


def _checked(work: Callable[[], object], at: int, key: str) -> Iterator[Problem]:
    try:
        work()
    except BadName as error:
        yield Problem(str(error), at, key)


def _nodes(topology: Topology) -> Iterator[Problem]:
    numbers: dict[int, str] = {}
    places: dict[tuple[str, int], int] = {}
    for at, one in enumerate(topology.sets):
        if not one.nodes:
            yield Problem('it has no nodes: name them, as in nodes = ["1=10.0.0.1:6800"]', at)
        for node in one.nodes:
            if node.number in numbers:
                where = numbers[node.number]
                yield Problem(
                    f"node {node.number} stands in set {where} already: a number is one node of "
                    "the whole system",
                    at,
                    "nodes",
                )
            elif (node.host, node.port) in places:
                other = places[node.host, node.port]
                yield Problem(f"node {node} has the address of node {other}", at, "nodes")
            numbers.setdefault(node.number, one.name)
            places.setdefault((node.host, node.port), node.number)


def _tags(topology: Topology) -> Iterator[Problem]:
    for at, one in enumerate(topology.sets):
        if one.tags is None:
            continue
        if one.tier == "core":
            yield Problem("core sets hold all topics and tags: leave out its tags", at, "tags")
        topics: set[str] = set()
        for row in one.tags:
            yield from _checked(partial(_check_full, row.topic), at, "tags")
            if row.topic in topics:
                yield Problem(f"topic {row.topic} stands twice", at, "tags")
            topics.add(row.topic)
            tags = row.tags or ()
            if len({*tags}) < len(tags):
                yield Problem(f"a tag of topic {row.topic} stands twice", at, "tags")
            if any(len(tag.encode(errors="replace")) > TAG_BYTES_MAX for tag in tags):
                text = f"a tag of topic {row.topic} has more than {TAG_BYTES_MAX} bytes"
                yield Problem(text, at, "tags")


def _check_full(topic: str) -> None:
    if "/".join(split_name(topic)) != topic:
        raise BadName(f"topic {topic!r}: write NAMESPACE/TOPIC")


def _uppers(topology: Topology) -> Iterator[Problem]:
    sets = {one.id: one for one in topology.sets}
    for at, one in enumerate(topology.sets):
        if one.tier == "core":
            if one.upper:
                yield Problem("a core set pulls from no other: leave out upper", at, "upper")
            continue
        if not one.upper:
            yield Problem(f"{_a(one)} set pulls from others: name them in upper", at)
        if len({*one.upper}) < len(one.upper):
            yield Problem("a set stands twice in upper: name each once", at, "upper")
        for id in dict.fromkeys(one.upper):
            upper = sets.get(id)
            if upper is None:
                yield Problem(f"upper names set {id}, which is not there", at, "upper")
            elif upper.tier == "access":
                text = f"{upper.name} is an access set, from which no set pulls"
                yield Problem(text, at, "upper")


def _a(one: SetRow) -> str:
    return "an access" if one.tier == "access" else f"a {one.tier}"


# -- of the tree ----------------------------------------------------------------------------------


def _cycles(topology: Topology) -> Iterator[Problem]:
    """Yield one cycle, by names, if there is any."""
    sets = {one.id: one for one in topology.sets}
    places = {one.id: at for at, one in enumerate(topology.sets)}
    is_done: set[int] = set()
    for start in topology.sets:
        path: dict[int, None] = {}
        # Of each set on the path, which of its uppers are still to be looked at.
        left: list[Iterator[int]] = []
        following: int | None = start.id
        while following is not None:
            if following in path:
                ids = [*path]
                cycle = [*ids[ids.index(following) :], following]
                names = " → ".join(sets[id].name for id in cycle)
                text = f"the uppers form a cycle: {names}"
                yield Problem(text, places[following], "upper")
                return
            if following not in is_done:
                path[following] = None
                left.append(iter(sets[following].upper))
            following = None
            while left and (following := next(left[-1], None)) is None:
                left.pop()
                is_done.add(path.popitem()[0])


def _levels(topology: Topology) -> Iterator[Problem]:
    sets = {one.id: one for one in topology.sets}
    deepest = max((one.level for one in topology.sets if one.tier == "tandem"), default=0)
    for at, one in enumerate(topology.sets):
        if one.tier == "core":
            if one.level:
                yield Problem("core sets have level 0", at, "level")
            continue
        if one.level < 1:
            yield Problem(f"{_a(one)} set has level 1 or more, not {one.level}", at, "level")
        for upper in map(sets.__getitem__, one.upper):
            if upper.level >= one.level:
                text = (
                    f"it has level {one.level}, and its upper {upper.name} level {upper.level}: a "
                    "set pulls from lower levels"
                )
                yield Problem(text, at, "level")
        if one.tier == "access" and one.level > deepest + 1:
            text = f"it has level {one.level}, and the last level is {deepest + 1}"
            yield Problem(text, at, "level")


def _coverage(topology: Topology) -> Iterator[Problem]:
    sets = {one.id: one for one in topology.sets}
    for at, one in enumerate(topology.sets):
        for upper in map(sets.__getitem__, one.upper):
            for lacked in _lacked(upper, one):
                text = f"its upper {upper.name} lacks {lacked}: add that there, or leave it out"
                yield Problem(text, at, "tags")


def _lacked(upper: SetRow, one: SetRow) -> Iterator[str]:
    """Yield in words what a set holds and an upper of it does not."""
    if upper.tags is None:
        for row in one.tags or ():
            if upper.tags_of(row.topic) is None:
                yield f"topic {row.topic}"
        return
    if one.tags is None:
        yield "topics that it does not name, and this set has all"
        return
    held = {row.topic: row for row in upper.tags}
    for row in one.tags:
        there = held.get(row.topic, TopicTags(row.topic, ()))
        if row.topic not in held:
            yield f"topic {row.topic}"
        elif missing := there.lacks(row):
            more = ", ..." * (len(missing) > _SHOWN_MAX)
            shown = ", ".join(map(_shown, missing[:_SHOWN_MAX]))
            yield f"tags {shown}{more} of topic {row.topic}"


def _shown(tag: str) -> str:
    return tag or '"" (untagged)'
