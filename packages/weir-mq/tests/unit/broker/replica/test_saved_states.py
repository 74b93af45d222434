"""What a checkpoint holds of groups counts for those that it knew."""

from __future__ import annotations

from typing import cast

import msgspec

from weir.broker.replica.checkpoints import Opened, saved_states
from weir.codec import U32, crc32c
from weir.storage.log import Log
from weir.storage.recovery import RecoveredGroup

STAYED, CAME_BACK, UNKNOWN = 5, 6, 7


def test_a_group_that_left_and_came_back_is_not_what_it_was() -> None:
    """Such a one began with a state of which it had no entry, and in which terms lay above its own:
    a start was refused for that (`sim`, four nodes, seed 6)."""
    rows = dict.fromkeys((STAYED, CAME_BACK, UNKNOWN), (88, 7, None, b""))
    body = msgspec.msgpack.encode((1, rows))
    groups = {STAYED: RecoveredGroup(None, 90), CAME_BACK: RecoveredGroup(None, 0, anew=True)}
    opened = Opened(cast(Log, None), groups, U32.pack(crc32c(body)) + body)
    assert saved_states(opened).keys() == {STAYED, UNKNOWN}
