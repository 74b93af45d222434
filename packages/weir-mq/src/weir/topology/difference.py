"""What changes from one topology to another, in the order in which it is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from weir.topology.sets import SetRow, TopicTags, Topology, name_of

_PLAIN = ("name", "tier", "level", "region", "carrier")


class Change(NamedTuple):
    """A change of a set, or of the whole (`set` ""): of its field `key` ("": the set itself)."""

    set: str
    key: str
    before: str
    after: str

    def __str__(self) -> str:
        if not self.set:
            return f"{self.key}: {self.before or '-'} → {self.after or '-'}"
        if not self.key:
            return f"- {self.set}: {self.before}" if self.before else f"+ {self.set}: {self.after}"
        return f"~ {self.set}: {self.key} {self.before or '-'} → {self.after or '-'}"


def difference(before: Topology, after: Topology) -> list[Change]:
    """Return what changes; empty if nothing does. A set is the same one while it has its id."""
    old = {one.id: one for one in before.sets}
    new = {one.id: one for one in after.sets}
    found = []
    home = home_of(before), home_of(after)
    if home[0] != home[1]:
        found.append(Change("", "home", *home))
    found += [
        Change(one.name, "", _said(before, one), "") for id, one in old.items() if id not in new
    ]
    for id, one in new.items():
        if id not in old:
            found.append(Change(one.name, "", "", _said(after, one)))
        else:
            found += _changes(before, old[id], after, one)
    return found


def home_of(topology: Topology) -> str:
    """Return the name of the home; empty where there are no sets."""
    return name_of(topology, topology.home) if topology.sets else ""


def _said(topology: Topology, one: SetRow) -> str:
    said = [f"id {one.id}", one.tier]
    if one.level:
        said.append(f"level {one.level}")
    said += [f"{key} {value}" for key in ("region", "carrier") if (value := getattr(one, key))]
    said.append(f"nodes {', '.join(map(str, one.nodes))}")
    if one.upper:
        said.append(f"upper {_uppers(topology, one)}")
    return "; ".join(said)


def _uppers(topology: Topology, one: SetRow) -> str:
    return ", ".join(name_of(topology, id) for id in one.upper)


def _changes(before: Topology, old: SetRow, after: Topology, new: SetRow) -> Iterator[Change]:
    def told(key: str, was: Any, now: Any) -> Iterator[Change]:
        if was != now:
            yield Change(old.name, key, f"{was}", f"{now}")

    for key in _PLAIN:
        yield from told(key, getattr(old, key), getattr(new, key))
    was, now = ({f"{node}" for node in one.nodes} for one in (old, new))
    if was != now:
        yield Change(old.name, "nodes", ", ".join(sorted(was - now)), ", ".join(sorted(now - was)))
    if old.upper != new.upper:
        yield Change(old.name, "upper", _uppers(before, old), _uppers(after, new))
    for key in ("hold_bytes", "hold_seconds", "disk_bytes"):
        yield from told(key, getattr(old.caps, key), getattr(new.caps, key))
    yield from _of_tags(old, new)


def _of_tags(old: SetRow, new: SetRow) -> Iterator[Change]:
    if old.tags is None or new.tags is None:
        if old.tags is not new.tags:
            said = (f"{'all' if one.tags is None else len(one.tags)} topics" for one in (old, new))
            yield Change(old.name, "tags", *said)
        return
    was, now = ({row.topic: row for row in one} for one in (old.tags, new.tags))
    for topic in sorted({*was, *now}):
        if (a := was.get(topic)) != (b := now.get(topic)):
            yield Change(old.name, f"tags of {topic}", _tags(a), _tags(b))


def _tags(row: TopicTags | None) -> str:
    if row is None:
        return ""
    return "all" if row.tags is None else ", ".join(tag or '""' for tag in sorted(row.tags))
