"""The two tables of inboxes, and the statements on them, for any database of SQLAlchemy's.

weir_inbox        a row for each message whose effect is done
weir_inbox_floor  a row for each partition: whatever has a lower offset, and a stamp as low, is done

The stamp tells a topic from another one that was made under its name later: there offsets begin at
0 again, and stamps go on.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Delete,
    Insert,
    Integer,
    MetaData,
    Select,
    String,
    Table,
    Update,
    bindparam,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from weir.model.limits import NAME_CHARACTERS_MAX

#: Of rows and floors alike; what the statements below take.
METADATA = MetaData()
_TOPIC_CHARACTERS = 2 * NAME_CHARACTERS_MAX + 1


def _columns() -> list[Column[Any]]:
    return [
        Column("cluster", String(NAME_CHARACTERS_MAX), primary_key=True),
        Column("topic", String(_TOPIC_CHARACTERS), primary_key=True),
        Column("partition", Integer, primary_key=True, autoincrement=False),
    ]


ROWS = Table(
    "weir_inbox",
    METADATA,
    *_columns(),
    Column("offset", BigInteger, primary_key=True, autoincrement=False),
    Column("stamp", BigInteger, nullable=False),
)
FLOORS = Table(
    "weir_inbox_floor",
    METADATA,
    *_columns(),
    Column("offset", BigInteger, nullable=False),
    Column("stamp", BigInteger, nullable=False),
)

# Parameters: where a message is, or a partition; each with its column's type.
_CLUSTER = bindparam("in_cluster", type_=ROWS.c.cluster.type)
_TOPIC = bindparam("in_topic", type_=ROWS.c.topic.type)
_PARTITION = bindparam("in_partition", type_=ROWS.c.partition.type)
_OFFSET = bindparam("at_offset", type_=ROWS.c.offset.type)
_STAMP = bindparam("at_stamp", type_=ROWS.c.stamp.type)


def _in(table: Table) -> tuple[Any, ...]:
    c = table.c
    return c.cluster == _CLUSTER, c.topic == _TOPIC, c.partition == _PARTITION


_BELOW = exists().where(*_in(FLOORS), FLOORS.c.offset > _OFFSET, FLOORS.c.stamp >= _STAMP)
_VALUES = {
    "cluster": _CLUSTER,
    "topic": _TOPIC,
    "partition": _PARTITION,
    "offset": _OFFSET,
    "stamp": _STAMP,
}


def _fresh(dialect_insert: Any) -> Insert:
    """Return what adds a row and returns it, or nothing if it was there or lies below the floor."""
    chosen = select(*_VALUES.values()).where(~_BELOW)
    adding = dialect_insert(ROWS).from_select([*_VALUES], chosen)
    # A row of a topic that had this name before makes way.
    adding = adding.on_conflict_do_update(
        index_elements=[*ROWS.primary_key.columns],
        set_={"stamp": adding.excluded.stamp},
        where=ROWS.c.stamp < adding.excluded.stamp,
    )
    found: Insert = adding.returning(ROWS.c.offset)
    return found


#: By the name of a database that can say in one statement whether a row is new.
FRESH: dict[str, Insert] = {
    "postgresql": _fresh(postgresql.insert),
    "sqlite": _fresh(sqlite.insert),
}

# For all other databases, one after the other.
IS_BELOW: Select[Any] = select(_BELOW)
ADD: Insert = insert(ROWS).values(_VALUES)
TAKE_OVER: Update = (
    update(ROWS)
    .where(*_in(ROWS), ROWS.c.offset == _OFFSET, ROWS.c.stamp < _STAMP)
    .values(stamp=_STAMP)
)

# Pruning. Below `at_offset` lies the cursor, or the floor that was told before.
HIGHEST: Select[Any] = (
    select(ROWS.c.offset, ROWS.c.stamp)
    .where(*_in(ROWS), ROWS.c.offset < _OFFSET)
    .order_by(ROWS.c.offset.desc())
    .limit(1)
)
LOWEST: Select[Any] = select(func.min(ROWS.c.offset)).where(*_in(ROWS))
FLOOR: Select[Any] = select(FLOORS.c.offset, FLOORS.c.stamp).where(*_in(FLOORS))
SET_FLOOR: Insert = insert(FLOORS).values(_VALUES)
RAISE_FLOOR: Update = (
    update(FLOORS)
    .where(
        *_in(FLOORS),
        or_(
            FLOORS.c.stamp < _STAMP,
            (FLOORS.c.stamp == _STAMP) & (FLOORS.c.offset < _OFFSET),
        ),
    )
    .values(offset=_OFFSET, stamp=_STAMP)
)
DELETE: Delete = delete(ROWS).where(*_in(ROWS), ROWS.c.offset < _OFFSET, ROWS.c.stamp <= _STAMP)


def place(cluster: str, topic: str, partition: int) -> dict[str, Any]:
    """Return the parameters that name a partition."""
    return {"in_cluster": cluster, "in_topic": topic, "in_partition": partition}


def position(offset: int, stamp: int) -> dict[str, Any]:
    """Return the parameters that name a message in it."""
    return {"at_offset": offset, "at_stamp": stamp}
