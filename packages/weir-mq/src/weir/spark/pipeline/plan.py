"""What a pipeline's folder says: `pipeline.toml`, read and checked before anything runs."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from weir.client.arguments import parse_url
from weir.client.connection.credentials import split_user
from weir.client.core.retries import seconds
from weir.errors import BadName, BadOption, BadPipeline
from weir.model.topic import full_name_of, split_name
from weir.spark.lake.layout import check_folder

FILE = "pipeline.toml"
Layer = Literal["bronze", "silver", "gold"]
LAYERS: tuple[Layer, ...] = ("bronze", "silver", "gold")
FILE_BYTES_MAX = 1 << 20
STEPS_MAX = 100
ROWS = 1_000_000
#: A name of a step is one of a folder, of a Python function and of a table in SQL.
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


class Bronze(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keeps topics in lakes, whole, all of them up to one cut; `lake` is the folder of one topic,
    if it is to be another than the pipeline's own.

    Where retention deleted messages before they were read, it ends by an error, or goes on at the
    earliest that is there with `on_data_loss` "earliest".
    """

    topics: list[str]
    lake: str = ""
    on_data_loss: Literal["fail", "earliest"] = "fail"


class Silver(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Makes typed rows of a topic's messages, by `schema`: a file, or "topic" for the topic's own.

    Messages with an `id`, an expression, that came `within` a time before are left out. `rules` are
    conditions by name; a row that breaks one is put in quarantine.
    """

    topic: str
    schema: str
    message: str = ""
    framed: bool = False
    checked: bool = False
    id: str = ""
    within: str = "10m"
    rules: dict[str, str] = {}
    function: str = ""
    to: list[str] = []


class Gold(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Makes rows of one silver table, or of several up to one cut.

    With `time`, a column of all of them, they have a watermark, which is behind the highest time;
    rows that come behind it are late: they are left out, and counted.
    """

    source: list[str] = msgspec.field(name="from")
    time: str = ""
    watermark: str = ""
    function: str = ""
    to: list[str] = []


class Sink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a step's rows go beside its table: a table in SQL, or a topic."""

    sql: str = ""
    table: str = ""
    topic: str = ""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: str
    lake: str = "lake"
    checkpoints: str = "checkpoints"
    rows_per_batch: int = ROWS
    every: str = "10s"
    bronze: dict[str, Bronze] = {}
    silver: dict[str, Silver] = {}
    gold: dict[str, Gold] = {}
    sinks: dict[str, Sink] = {}


@dataclass(frozen=True, slots=True)
class Plan:
    """A pipeline: its folder, broker, lake and checkpoints, and its steps by name and layer.

    `every` is in seconds: a pipeline that goes on begins a round no sooner behind the last.
    """

    folder: Path
    url: str
    lake: Path
    checkpoints: Path
    rows_per_batch: int
    every: float
    bronze: Mapping[str, Bronze]
    silver: Mapping[str, Silver]
    gold: Mapping[str, Gold]
    sinks: Mapping[str, Sink]

    def steps(self) -> Iterator[tuple[Layer, str]]:
        """Yield (layer, name) of each step in the order that they run in."""
        for layer, names in zip(LAYERS, (self.bronze, self.silver, self.gold), strict=True):
            for name in names:
                yield layer, name

    def lake_of(self, topic: str) -> Path:
        """Return the folder where a topic is kept. Raises `BadPipeline` if none is."""
        for step in self.bronze.values():
            if topic in map(full_name, step.topics):
                if step.lake:
                    return _folder(self.folder, step.lake, "lake")
                return self.lake / "bronze" / topic.replace("/", "~")
        raise BadPipeline(f"{FILE}: no bronze step keeps topic {topic!r}: name it in one")

    def table_of(self, layer: Layer, name: str) -> Path:
        """Return the folder of a silver or gold step's table."""
        return self.lake / layer / name

    def quarantine_of(self, name: str) -> Path:
        """Return the folder of the messages that a silver step put in quarantine."""
        return self.lake / "quarantine" / name

    def checkpoint_of(self, name: str) -> Path:
        """Return the folder of a step's checkpoint."""
        return self.checkpoints / name


def read(folder: Path) -> Plan:
    """Read a pipeline's file. Raises `BadPipeline`, which says where in it something is wrong."""
    folder = folder.expanduser().absolute()
    path = folder / FILE
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise BadPipeline(f"{path} is not there: weir pipeline init {folder} writes one") from None
    if len(data) > FILE_BYTES_MAX:
        raise BadPipeline(f"{path} has more than {FILE_BYTES_MAX:,} bytes")
    try:
        given = msgspec.convert(tomllib.loads(data.decode()), _File)
    except UnicodeDecodeError:
        raise BadPipeline(f"{path} is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise BadPipeline(f"{path}: {error}") from None
    except msgspec.ValidationError as error:
        raise BadPipeline(f"{path}: {_in_words(str(error))}") from None
    plan = Plan(
        folder,
        given.url,
        _folder(folder, given.lake, "lake"),
        _folder(folder, given.checkpoints, "checkpoints"),
        given.rows_per_batch,
        _seconds("every", given.every),
        given.bronze,
        given.silver,
        given.gold,
        given.sinks,
    )
    _check(plan)
    return plan


def full_name(topic: str) -> str:
    """Return a topic's full name, as users write it. Raises `BadPipeline`."""
    try:
        return full_name_of(*split_name(topic))
    except BadName as error:
        raise BadPipeline(f"{FILE}: {error}") from None


def seconds_within(name: str, step: Silver) -> float:
    """Return how long ids are remembered, in seconds, at least one. Raises `BadPipeline`."""
    return _seconds(f"silver.{name}.within", step.within, 1)


def watermark_seconds(name: str, step: Gold) -> float:
    """Return how far a step's watermark is behind, in seconds. Raises `BadPipeline`."""
    return _seconds(f"gold.{name}.watermark", step.watermark)


def _check(plan: Plan) -> None:
    try:
        parse_url(split_user(plan.url)[0])
    except ValueError as error:
        raise BadPipeline(f"{FILE}: url: {error}") from None
    if plan.rows_per_batch < 1:
        raise BadPipeline(f"{FILE}: rows_per_batch: give 1 or more")
    steps = [*plan.steps()]
    if not plan.bronze:
        raise BadPipeline(f"{FILE}: there is no bronze step: name topics, as in [bronze.events]")
    if len(steps) > STEPS_MAX:
        raise BadPipeline(f"{FILE}: {len(steps)} steps: a pipeline has at most {STEPS_MAX}")
    seen: set[str] = set()
    for layer, name in [*steps, *(("sinks", name) for name in plan.sinks)]:
        if not _NAME.fullmatch(name):
            raise BadPipeline(
                f"{FILE}: {layer}.{name}: a name is made of a-z, 0-9 and _, as in days_2"
            )
        if name in seen:
            raise BadPipeline(f"{FILE}: two steps are called {name!r}: rename one")
        seen.add(name)
    _check_bronze(plan)
    _check_tables(plan)


def _check_tables(plan: Plan) -> None:
    for name, silver in plan.silver.items():
        plan.lake_of(full_name(silver.topic))
        seconds_within(name, silver)
        _check_sinks(plan, f"silver.{name}", silver.to)
    for name, gold in plan.gold.items():
        if not gold.source:
            raise BadPipeline(f"{FILE}: gold.{name}: from: name a silver step")
        for one in gold.source:
            if one not in plan.silver:
                raise BadPipeline(f"{FILE}: gold.{name}: from: there is no silver step {one!r}")
        if len(set(gold.source)) < len(gold.source):
            raise BadPipeline(f"{FILE}: gold.{name}: from: a step is named twice")
        if bool(gold.time) != bool(gold.watermark):
            raise BadPipeline(f"{FILE}: gold.{name}: give time and watermark, or neither")
        if gold.time:
            watermark_seconds(name, gold)
        _check_sinks(plan, f"gold.{name}", gold.to)


def _check_bronze(plan: Plan) -> None:
    kept: set[str] = set()
    for name, step in plan.bronze.items():
        if not step.topics:
            raise BadPipeline(f"{FILE}: bronze.{name}: topics: name one")
        if step.lake and len(step.topics) > 1:
            raise BadPipeline(f"{FILE}: bronze.{name}: lake: it is for a step of one topic")
        for topic in map(full_name, step.topics):
            if topic in kept:
                raise BadPipeline(f"{FILE}: topic {topic!r} is kept twice: name it in one step")
            kept.add(topic)


def _check_sinks(plan: Plan, where: str, names: list[str]) -> None:
    for name in names:
        sink = plan.sinks.get(name)
        if sink is None:
            raise BadPipeline(f"{FILE}: {where}: to: there is no sink {name!r}: add [sinks.{name}]")
        if bool(sink.sql) == bool(sink.topic):
            raise BadPipeline(f"{FILE}: sinks.{name}: give one of sql and topic")
        if sink.table and not _NAME.fullmatch(sink.table):
            raise BadPipeline(f"{FILE}: sinks.{name}: table: use a-z, 0-9 and _")


def _folder(root: Path, given: str, what: str) -> Path:
    path = Path(given).expanduser() if "://" not in given else None
    try:
        return check_folder(given if path is None else str(root / path))
    except BadOption as error:
        raise BadPipeline(f"{FILE}: {what}: {error}") from None


def _seconds(what: str, text: str, least: float = 0.0) -> float:
    try:
        found = seconds(text)
    except ValueError as error:
        raise BadPipeline(f"{FILE}: {what}: {error}") from None
    if found < least:
        raise BadPipeline(f"{FILE}: {what}: give {least:g}s or more")
    return found


def _in_words(error: str) -> str:
    """Return an error of msgspec as people read a file: `silver.locks: unknown field`."""
    what, _, where = error.partition(" - at `$")
    place = where.rstrip("`").strip(".").replace("[...]", "")
    return f"{place}: {what}" if place else what
