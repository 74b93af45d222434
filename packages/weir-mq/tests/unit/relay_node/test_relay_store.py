"""The log of a relay node: what was synced is there again, and what is damaged begins anew."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from weir.codec import Buffer
from weir.relay.entries import (
    AnyRecord,
    FilterSet,
    Relayed,
    StartMoved,
    decode_entry,
    encode_entry,
)
from weir.relay.ports import AppendEntry
from weir.relay.rows import Row
from weir.relay.state import RelayState
from weir.relay_node import store as module
from weir.relay_node.folder import BadRelayFolder, Founded
from weir.relay_node.serve import open_folder
from weir.relay_node.store import RelayStore
from weir.storage.format import checkpoint
from weir.testing.simulator.disk import SimDisk

SYSTEM, GROUP, OTHER = 7, 3 << 16, 3 << 16 | 1
BEGIN: tuple[AnyRecord, ...] = (StartMoved(100), FilterSet(1, None, 100))


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEGMENT_BYTES", 64 * 1024)
    monkeypatch.setattr(module, "ENTRY_BYTES_MAX", 8 * 1024)


class Twin:
    """A store on a disk that forgets, and the states that its entries make."""

    def __init__(self) -> None:
        self.disk = SimDisk(random.Random(1))
        self.states: dict[int, RelayState] = {}
        self.boot()

    def boot(self) -> None:
        self.store = RelayStore.open(self.disk, module.settings_of(SYSTEM))

    def append(self, group: int, record: AnyRecord, *data: Buffer) -> None:
        state = self.states.setdefault(group, RelayState())
        encoded = encode_entry(record, *data)
        size = len(b"".join(encoded))
        index = state.apply(record, size)
        assert self.store.append(group, AppendEntry(index, record, data, encoded)) == size

    def relay(self, group: int, data: bytes = b"weir") -> None:
        end = self.states[group].end
        row = Row(1, 3, end, len(data))
        self.append(group, Relayed(0, end, end + 3, 1, 5, (row,)), data)

    def begin(self, group: int) -> None:
        for record in BEGIN:
            self.append(group, record)

    def flush(self) -> tuple[object, ...]:
        flush = self.store.next_flush()
        assert flush is not None
        flush.run(self.disk)
        self.store.log.flushed(flush)
        return flush.tokens

    def checkpoint(self) -> None:
        data = self.store.checkpoint(self.states)
        assert data is not None
        checkpoint.save(self.disk, data)
        self.store.saved()
        while (chore := self.store.log.next_chore()) is not None:
            chore.run(self.disk)

    def snapshots(self) -> dict[int, bytes]:
        return {group: state.encode() for group, state in self.states.items()}


def encoded(store: RelayStore) -> dict[int, bytes]:
    return {group: state.encode() for group, state in store.states.items()}


@pytest.fixture
def twin() -> Twin:
    twin = Twin()
    for group in (GROUP, OTHER):
        twin.begin(group)
        twin.relay(group)
    return twin


def test_what_was_synced_is_there_again(twin: Twin) -> None:
    tokens = twin.flush()
    assert tokens == tuple((g, i) for g in (GROUP, OTHER) for i in (1, 2, 3))
    durable = twin.snapshots()
    twin.relay(GROUP)
    assert twin.store.checkpoint(twin.states) is None, "a state was ahead of its log"
    twin.disk.crash()
    twin.boot()
    assert encoded(twin.store) == durable


def test_entries_are_read_from_memory_before_they_are_durable(twin: Twin) -> None:
    found = twin.store.cached(GROUP, [3])
    assert bytes(decode_entry(found[3])[1]) == b"weir"
    assert twin.store.reading(GROUP, [3]) == (None, [])
    twin.flush()
    twin.disk.crash()
    twin.boot()
    assert twin.store.cached(GROUP, [3]) == {}
    reading, which = twin.store.reading(GROUP, [2, 3])
    assert reading is not None
    payloads = reading.run(twin.disk)
    assert which == [2, 3]
    assert [type(decode_entry(one)[0]) for one in payloads] == [FilterSet, Relayed]


def test_a_checkpoint_holds_what_its_entries_said(twin: Twin) -> None:
    twin.flush()
    twin.checkpoint()
    twin.relay(GROUP)
    twin.flush()
    twin.disk.crash()
    twin.boot()
    assert encoded(twin.store) == twin.snapshots()


def test_what_nobody_needs_is_used_again_once_a_checkpoint_covers_it(twin: Twin) -> None:
    twin.flush()
    for _ in range(40):
        twin.relay(GROUP, bytes(7_000))
        twin.flush()
    held = len(twin.store.log.segments)
    state = twin.states[GROUP]
    twin.append(GROUP, StartMoved(state.end))
    twin.store.drop_below(GROUP, state.kept_index())
    twin.flush()
    assert len(twin.store.log.segments) == held
    twin.relay(OTHER)  # the other group's entries are needed: it has them in a newer segment, too
    twin.append(OTHER, StartMoved(twin.states[OTHER].end))
    twin.store.drop_below(OTHER, twin.states[OTHER].kept_index())
    twin.flush()
    twin.checkpoint()
    twin.checkpoint()
    assert len(twin.store.log.segments) < held
    twin.disk.crash()
    twin.boot()
    assert encoded(twin.store) == twin.snapshots()


def test_a_group_that_is_damaged_begins_anew(twin: Twin) -> None:
    twin.flush()
    twin.relay(OTHER)  # what follows makes the flush before it the durable mark
    twin.flush()
    twin.store.log.mark_idle()
    twin.flush()
    stored = twin.store.log.reader.stored(GROUP, 3)
    assert stored is not None
    segment = twin.store.log.segments.find(stored.place)
    twin.disk.flip(segment.name, stored.place - segment.base + 60)
    twin.boot()
    assert encoded(twin.store).keys() == {OTHER}
    assert encoded(twin.store)[OTHER] == twin.snapshots()[OTHER]
    del twin.states[GROUP]
    twin.begin(GROUP)
    twin.relay(GROUP, b"again")
    twin.flush()
    twin.disk.crash()
    twin.boot()
    assert encoded(twin.store) == twin.snapshots()


def test_a_group_that_is_dropped_is_gone(twin: Twin) -> None:
    twin.flush()
    twin.store.drop_group(GROUP)
    del twin.states[GROUP]
    twin.checkpoint()
    twin.boot()
    assert encoded(twin.store) == twin.snapshots()


def test_the_folder_says_whose_copy_it_holds(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    assert (folder.founded(), folder.topics()) == (None, [])
    folder.found(Founded(1, 2, 3))
    folder.close()
    assert open_folder(tmp_path).founded() == Founded(1, 2, 3)
    (tmp_path / "relay.json").write_text("{")
    (tmp_path / "node.json").write_text("{}")
    with pytest.raises(BadRelayFolder, match="folder of a node of the core"):
        open_folder(tmp_path)


def test_a_folder_with_files_of_others_is_refused(tmp_path: Path) -> None:
    for name in ("fstab", "hosts", "passwd", "resolv.conf.new"):
        (tmp_path / name).touch()
    with pytest.raises(
        BadRelayFolder, match=r"other files \(fstab, hosts, passwd, \.\.\.\) and no"
    ):
        open_folder(tmp_path)
    assert len([*tmp_path.iterdir()]) == 4, "nothing was made, and nothing removed"


def test_a_relay_that_was_not_founded_yet_is_begun_again(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    open_folder(tmp_path).close()
    (tmp_path / "relay.json.new").write_text("{")
    folder = open_folder(tmp_path)
    folder.found(Founded(1, 2, 3))
    folder.close()
    (tmp_path / "beside").touch()
    assert open_folder(tmp_path).founded() == Founded(1, 2, 3)


def test_a_folder_that_cannot_be_read_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "relay.json").write_text("{")
    (tmp_path / "topics.json").write_text("{")
    folder = open_folder(tmp_path)
    with pytest.raises(BadRelayFolder, match="remove the folder"):
        folder.founded()
    assert folder.topics() == []
    folder.close()
