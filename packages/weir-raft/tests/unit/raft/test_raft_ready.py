from __future__ import annotations

import pytest

from weir_raft import Entry, EntryKind, HardState, Leadership, Ready

ENTRY = Entry(1, 1, EntryKind.NOOP, None, 0)


@pytest.mark.parametrize(
    ("ready", "must"),
    [
        (Ready(1, HardState(1, 1), (), (), None), True),
        (Ready(2, None, (ENTRY,), (), Leadership(1, 0)), True),
        (Ready(3, None, (), (ENTRY,), None), False),
    ],
)
def test_only_a_hard_state_or_entries_must_persist(ready: Ready, must: bool) -> None:
    assert ready.must_persist is must


def test_a_ready_cannot_be_changed() -> None:
    ready = Ready(1, HardState(1, 1), (), (), None)
    with pytest.raises(AttributeError):
        ready.number = 2  # type: ignore[misc]
