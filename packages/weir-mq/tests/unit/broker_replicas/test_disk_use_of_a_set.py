"""On each of three nodes files follow what is retained (two checkpoints: Raft drops, files go)."""

from __future__ import annotations

from typing import Any

from weir.model.topic import SettingsChange
from weir.protocol.client import messages as m
from weir.storage.format.checkpoint import CHECKPOINT, COPY

SEGMENT = 64 * 1024
VALUE = b"v" * 10_000


def test_files_of_all_replicas_follow_what_is_retained(trio: Any, produce: Any) -> None:
    info = trio.topic(settings=SettingsChange(retention_bytes=SEGMENT))
    grant, group = trio.producer(), info.addresses[0].group
    for sequence in range(66):
        reply = trio.told(produce(info, grant, sequence, VALUE), group)
        assert isinstance(reply, m.Confirm)
    trio.run(60_000)
    for node in trio.live():
        files = {name: node.disk.size(name) for name in node.disk.names()}
        state = files[CHECKPOINT] + files[COPY]
        assert sum(files.values()) <= 1.25 * (SEGMENT + len(VALUE) + state) + 3 * SEGMENT
