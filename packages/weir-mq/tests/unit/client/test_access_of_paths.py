"""Every way by which users come to a node, as it ships: what it asks follows from a node that
watches, and is enough in a closed one; without any part of that it is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

import weir
from weir import sync, testing
from weir.cli.backup import manifest, topics
from weir.client.access import AccessRule
from weir.errors import AccessRevoked, NotAuthenticated, Unauthorized, UnknownTopic, WeirError
from weir.spark import blocking_client
from weir.spark.sink import writer as sink
from weir.spark.source import WeirDataSource

#: Does its work by the address of a user, in a folder that is empty.
Work = Callable[[str, Path], None]
VALUES = pa.RecordBatch.from_pydict({"value": [b"x"]})
_numbers = count()
#: A rule of the same verbs for something else.
OTHER: dict[str, Callable[[tuple[str, ...]], AccessRule]] = {
    "topic": lambda verbs: AccessRule(verbs, "topic", "default/other"),
    "cluster": lambda verbs: AccessRule(verbs, "cluster", "default/t:other"),
    "namespace": lambda verbs: AccessRule(verbs, "namespace", "other"),
}


def publish(url: str, _: Path) -> None:
    with sync.connect(url) as w:
        w.publish("t", b"v")


def read(url: str, _: Path) -> None:
    with sync.connect(url) as w, w.reader("t", follow=False) as reader:
        assert [message.value for message in reader]


def consume(url: str, _: Path) -> None:
    async def run() -> None:
        async with (
            weir.connect(url) as w,
            w.consumer("t", cluster=f"w{next(_numbers)}") as consumer,
        ):
            async for message in consumer:
                await message.ack()
                break

    asyncio.run(run())


def scatter(url: str, _: Path) -> None:
    async def run() -> None:
        async with weir.connect(url) as w, w.scatter() as s:
            s.publish("t", b"v")
            s.publish("u", b"v")

    asyncio.run(run())


def read_by_spark(url: str, _: Path) -> None:
    blocking_client.forget_all()
    source = WeirDataSource({"topic": "t", "url": url})
    reader = source.reader(source.schema())
    tasks = reader.partitions()
    assert sum(rows.num_rows for task in tasks for rows in reader.read(task))  # type: ignore[attr-defined]
    blocking_client.forget_all()


def write_by_spark(url: str, _: Path) -> None:
    sink.forget_all()
    source = WeirDataSource({"topic": "t", "url": url, "id": f"q{next(_numbers)}"})
    writer = source.writer(StructType([StructField("value", BinaryType())]), False)
    assert isinstance(writer, sink.TableWriter)
    writer.commit([writer.write(iter([VALUES]))])
    sink.forget_all()


def back_up(url: str, folder: Path) -> None:
    async def run() -> None:
        async with weir.connect(url) as w:
            await topics.back_up(w, ["t"], folder / "backup", lambda _: None)

    asyncio.run(run())


def restore(url: str, folder: Path) -> None:
    """Restore what `kept` is a backup of, and take it away again by another user."""

    async def run() -> None:
        async with weir.connect(url) as w:
            made = manifest.read(folder / "kept")
            await topics.restore(w, folder / "kept", made, lambda _: None)

    asyncio.run(run())


PATHS: dict[str, tuple[Work, set[str]]] = {
    "publish": (publish, {"publish topic", "publish topic default/t"}),
    "read": (read, {"read topic default/t"}),
    "consume": (consume, {"consume topic default/t"}),
    "scattering": (
        scatter, {"publish topic", "publish topic default/t", "publish topic default/u"},
    ),
    "backup": (back_up, {"read topic default/t"}),
    "restore": (restore, {"restore namespace default", "publish topic",
                          "publish topic default/kept", "read topic default/kept"}),
    "Spark source": (read_by_spark, {"read topic default/t"}),
    "Spark sink": (write_by_spark, {"publish topic", "publish topic default/t"}),
}  # fmt: skip
#: Where their address names no user they are nobody: a closed set is closed to them.
NOBODY = {"Spark source": read_by_spark, "Spark sink": write_by_spark}


class Tenancy:
    """A node with an administrator, topics t and u, and users that are made as a test goes."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._folder = url, folder
        with sync.connect(url) as w:
            for name in ("t", "u", "kept"):
                w.create_topic(name)
                w.publish(name, b"a")
            w.alter_topic("t", scatter_with=["u"])
            w.alter_topic("u", scatter_with=["t"])
            w.access.create_user("root", "pw", ["admin"])
        self.new_folder(make=True)

    def of(self, user: str) -> str:
        return self._url.replace("//", f"//{user}@")

    def set_mode(self, mode: str) -> None:
        with sync.connect(self.of("root")) as w:
            w.access.set_mode(mode)  # type: ignore[arg-type]

    def new_folder(self, make: bool = False) -> Path:
        """Return an empty folder; but for a backup of `kept`, which then is there no more."""
        folder = self._folder / f"f{next(_numbers)}"
        folder.mkdir()
        kept = self._folder / "kept"
        if make:

            async def run() -> None:
                async with weir.connect(self._url) as w:
                    await topics.back_up(w, ["kept"], kept, lambda _: None)

            asyncio.run(run())
        (folder / "kept").symlink_to(kept)
        return folder

    def user(self, rules: set[AccessRule]) -> str:
        """Let there be a user who may do this; return its address."""
        name = f"u{next(_numbers)}"
        with sync.connect(self.of("root")) as w:
            if rules:
                w.access.change_rules(name, sorted(rules, key=str))
            w.access.create_user(name, "pw", [name] if rules else [])
        return self.of(name)

    def drop(self, topic: str) -> None:
        with sync.connect(self.of("root")) as w:
            if any(one.name == topic for one in w.topics()):
                w.delete_topic(topic)

    def refused(self) -> set[AccessRule]:
        """Return what the last user asked and no rule allowed."""
        with sync.connect(self.of("root")) as w:
            found = w.access.refusals()
            last = max((one.principal for one in found), key=lambda who: int(who.split("#")[1]))
            return {one.rule for one in found if one.principal == last}


@pytest.fixture
def tenancy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tenancy]:
    monkeypatch.setenv("WEIR_PASSWORD", "pw")
    with testing.node() as node:
        yield Tenancy(node.url, tmp_path)
        blocking_client.forget_all()
        sink.forget_all()


@pytest.mark.parametrize("name", PATHS)
def test_a_path_needs_what_its_requests_declare_and_no_less(
    tenancy: Tenancy, name: str, tell: Callable[..., None]
) -> None:
    path, expected = PATHS[name]
    tenancy.drop("kept")
    path(tenancy.user(set()), tenancy.new_folder())
    tenancy.drop("kept")
    tenancy.set_mode("watch")
    path(tenancy.user(set()), tenancy.new_folder())
    needed = {one for one in tenancy.refused() if one.verbs[0] != "describe"}
    shown = {str(one).replace(" --everything", "") for one in needed}
    assert shown == expected
    tenancy.set_mode("closed")
    tenancy.drop("kept")
    exact = {one for one in needed if one.name}
    path(tenancy.user(exact), tenancy.new_folder())
    tenancy.drop("kept")
    lesser: list[set[AccessRule]] = [set()]
    for missing in exact:
        if any(one.verbs == missing.verbs for one in exact - {missing}):
            less = exact - {missing}
        else:
            less = {*exact - {missing}, OTHER[missing.kind](missing.verbs)}
        lesser.append(less)
    bypasses = []
    for less in lesser:
        with suppress(Unauthorized, UnknownTopic):
            path(tenancy.user(less), tenancy.new_folder())
            bypasses.append(less)
        tenancy.drop("kept")
    tell(cases=1 + len(lesser), refused=len(lesser), bypasses=len(bypasses))
    assert bypasses == []


@pytest.mark.parametrize("name", NOBODY)
def test_what_names_no_user_is_let_in_by_an_open_set_alone(tenancy: Tenancy, name: str) -> None:
    path = NOBODY[name]
    nobody = tenancy.of("root").replace("root@", "")
    path(nobody, tenancy.new_folder())
    tenancy.set_mode("closed")
    with pytest.raises((NotAuthenticated, AccessRevoked)):
        path(nobody, tenancy.new_folder())


@pytest.mark.parametrize("name", PATHS)
def test_a_path_lets_nobody_in_without_a_password(
    tenancy: Tenancy, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = PATHS[name]
    tenancy.drop("kept")
    tenancy.set_mode("closed")
    nobody = tenancy.of("root").replace("root@", "")
    with pytest.raises(NotAuthenticated):
        path(nobody, tenancy.new_folder())
    monkeypatch.setenv("WEIR_PASSWORD", "guess")
    with pytest.raises(NotAuthenticated):
        path(tenancy.of("root"), tenancy.new_folder())
    monkeypatch.setenv("WEIR_PASSWORD", "")
    with pytest.raises((NotAuthenticated, WeirError, ValueError)):
        path(tenancy.of("root"), tenancy.new_folder())
