"""Spark queries on the topic: what plans and reads is the source as it ships.

In the place of Spark stands what it does with a source: it plans a micro-batch, writes its end into
the checkpoint, reads it, hands it to the sink, and writes down that it is done; started again, it
replays what it had not written down. Needs pyarrow: import it where that is here.
"""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, field
from zlib import crc32

from msgspec.structs import replace

from weir.client.client import Client
from weir.client.connection.system import SYSTEM, System
from weir.errors import RangeLost, UnknownTopic, ValueLost, WeirError
from weir.spark.blocking_client import forget_all
from weir.spark.fetcher import Portion
from weir.spark.options import UNLIMITED, Options
from weir.spark.planning import Cut
from weir.spark.rows import read_rows
from weir.spark.stream import Offset, Stream
from weir.testing.simulator.clients.loop import VirtualLoop
from weir.testing.simulator.world import SECOND
from weir_lab.sim.history import Seen
from weir_lab.sim.observations import UNREAD, Gap, MicroBatch, Query, Row
from weir_lab.sim.programs.program import TOPIC
from weir_lab.sim.programs.scene import Scene
from weir_lab.sim.programs.shipped.blocking_sockets import dial, dial_older, sleep
from weir_lab.sim.programs.shipped.process import Shipped

_ROWS = (None, 3, 20)
_PARTITIONS = (None, 3)
_ROWS_EACH = (None, 2, 7)
_BYTES = (None, 1, 1_500)
_ORDERS = (None, None, "total", "partition")
#: Of what is read, those of a `Row`.
_COLUMNS = ("stamp", "partition", "offset", "value")
#: How likely a query begins at the latest message, and the next one does.
_LATEST = 0.3
#: How likely it is killed where it writes to its checkpoint or its sink.
_KILLED = 0.1
#: How likely a run ends at what is there when it begins.
_AVAILABLE = 0.2


@dataclass(slots=True)
class _Checkpoint:
    """The folder of a query's checkpoint: what Spark has written there."""

    options: dict[str, str]
    query: Query
    #: By the number of a micro-batch, its end.
    offsets: list[str] = field(default_factory=list)
    #: How many are done.
    commits: int = 0


class ShippedQuery(Shipped):
    """Runs a query, one micro-batch after the other, until all is read."""

    def __init__(self, scene: Scene, name: str) -> None:
        """Begin with an empty checkpoint."""
        super().__init__(scene, name)
        self._queries = 0
        self._checkpoint = self._new_checkpoint()

    def _new_checkpoint(self) -> _Checkpoint:
        dice = self.world.dice
        self._queries += 1
        earliest = self._ending or not self.world.chance(_LATEST)
        given = {
            "topic": TOPIC,
            "url": self.url,
            "startingOffsets": "earliest" if earliest else "latest",
            "maxRowsPerBatch": dice.choice(_ROWS),
            "minPartitions": dice.choice(_PARTITIONS),
            "maxRowsPerPartition": dice.choice(_ROWS_EACH),
            "maxBytesPerFetch": dice.choice(_BYTES),
            "order": dice.choice(_ORDERS),
            "onDataLoss": None if self._queries % 2 else "earliest",
        }
        options = {name: str(value) for name, value in given.items() if value is not None}
        query = Query(f"{self.name}.{self._queries}", {}, earliest)
        self.history.queries.append(query)
        return _Checkpoint(options, query)

    def _system(self, loop: VirtualLoop) -> System:
        number = crc32(f"{self.name}.{self.life}".encode())
        system = super()._system(loop)
        # Some lives are spent before the brokers are of this release.
        dials = dial if number % 4 else dial_older
        return replace(system, dial=dials, sleep=sleep, process=lambda: number)

    async def work(self, client: Client) -> None:
        """Wait for the end; nothing else is done by a client of this process."""
        await self.told_to_end()

    async def _once(self) -> None:
        """Run the query until it is killed, or fails."""
        checkpoint = self._checkpoint
        try:
            await self.in_thread(lambda: self._run(checkpoint))
        except RangeLost as error:
            self.world.note(self.name, "is told of a gap", str(error))
            if not self.history.retention_bytes:
                self.complain("Streamed", f"messages are lost: {error}")
            checkpoint.query.broken = True
            self._checkpoint = self._new_checkpoint()
        except UnknownTopic as error:
            self.world.note(self.name, "knows no topic", str(error))
        except ValueLost as error:
            if not (self.history.retention_bytes or self.history.values_expire):
                self.complain("Streamed", f"a value is lost: {error!r}")
            self.world.note(self.name, "lost a value")
            checkpoint.query.broken = True
            self._checkpoint = self._new_checkpoint()
            self._checkpoint.options |= {"maxValueBytes": "1", "largeValues": "null"}
        except WeirError as error:
            self.world.note(self.name, "failed", type(error).__name__, str(error))
            self.expect(error, "Streamed", "a query was refused")
        if not self.finished:
            await self.rest()

    def _run(self, at: _Checkpoint) -> None:
        """Do what Spark does with a checkpoint and a source, until that has nothing new for a query
        that is to end at what was there when it began, or at the end.
        """
        options = Options.parse(at.options)
        try:
            forget_all()  # what an earlier world with such a process has left
            stream: Stream = pickle.loads(pickle.dumps(Stream(options)))
            if pinned := not self._ending and self.world.chance(_AVAILABLE):
                stream.pin_end()
            began = self.world.now
            while self._next(at, options, stream) or not (pinned or self._ending):
                self._pause()
                began = self.world.now
            if self._ending and not pinned:
                at.query.cut, self.finished = began, True
        finally:
            forget_all()

    def _next(self, at: _Checkpoint, options: Options, stream: Stream) -> bool:
        """Run the micro-batch that is not done, or plan another; return whether there is one."""
        query = at.query
        if at.commits == len(at.offsets):
            start = at.offsets[-1] if at.offsets else json.dumps(stream.initial())
            if not at.offsets:
                query.begin = dict(Cut.from_json(json.loads(start)).positions)
            # In the end a query may catch up at once: where disks are slow, each cut takes long.
            most = UNLIMITED if self._ending else options.admission
            end = json.dumps(stream.latest(json.loads(start), most))
            if end == start:
                return False
            self._pause()
            at.offsets.append(end)
            cut = Cut.from_json(json.loads(end))
            query.batches.append(MicroBatch(dict(cut.positions), cut.stamp))
            self.world.note(query.name, "plans", end)
            self._pause()
        number = at.commits
        begin: Offset = json.loads(at.offsets[number - 1]) if number else stream.initial()
        portions = stream.portions(begin, json.loads(at.offsets[number]))
        rows: list[Row] = []
        gaps: list[Gap] = []
        for portion in portions:
            self._read(portion, options, rows, gaps)
        query.batches[number].runs.append(rows)
        query.batches[number].gaps.append(gaps)
        self.world.note(query.name, "wrote", number, len(rows))
        self._pause()
        query.batches[number].committed = True
        at.commits += 1
        return True

    def _read(self, portion: Portion, options: Options, rows: list[Row], gaps: list[Gap]) -> None:
        """Do one task; add what it finds."""
        task: Portion = pickle.loads(pickle.dumps(portion))
        found: list[Row] = []
        for batch in read_rows(task, options):
            columns = (batch.column(name).to_pylist() for name in _COLUMNS)
            lost = batch.column("lost").to_pylist() if options.over_gaps else [None] * len(batch)
            for stamp, partition, offset, value, count in zip(*columns, lost, strict=True):
                if count is not None:
                    gaps.append(Gap(partition, offset, offset + count))
                    self.world.note(self.name, "goes on over", *gaps[-1])
                    continue
                value = UNREAD if value is None else value
                value = self.history.packed.get((partition, value), value)
                found.append(Row(stamp, partition, offset, value))
        self.history.seen += [
            Seen(row.partition, row.offset, (row.value,), row.stamp)
            for row in found
            if row.value != UNREAD
        ]
        rows += found

    def _pause(self) -> None:
        """Take the time that writing to a file takes, in which it may be killed."""
        if not self.spared and self.world.chance(_KILLED):
            self.world.after(1, self._end_process, self._loop)
        SYSTEM.get().sleep(self._rhythm() / SECOND)

    def _end_process(self, loop: VirtualLoop | None) -> None:
        if loop is self._loop and loop is not None:
            self.kill()
