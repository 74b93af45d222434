"""Snapshots that come: each is decoded before Raft takes the message that completes it.

Once Raft has taken it, nothing else is here. A large one is decoded off the loop, and the group
goes on meanwhile; what Raft is told then is the message as it came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weir.broker.records.snapshots import Unpacking
from weir.broker.replica.halting import why_no_state
from weir.broker.runtime.reads import Reads
from weir.codec.fields import Buffer
from weir.errors import Refused

#: Told the state, or why there is none.
Decoded = Callable[[object, str], None]


class Incoming:
    """The snapshot that one group is being sent, as far as it is whole."""

    __slots__ = ("_log", "_reads", "is_decoding", "state")

    def __init__(self, log: int, reads: Reads) -> None:
        """Expect none; `reads` decodes what is large."""
        self._log = log
        self._reads = reads
        #: Whether one is being decoded off the loop.
        self.is_decoding = False
        #: What came of the one that Raft is about to take.
        self.state: object = None

    def decode(self, data: Buffer, decode: Callable[[Any], object]) -> str:
        """Decode a small one here and now; return why it cannot be, or nothing."""
        work = Unpacking(self._log, data, decode)
        work.run(None)
        self.state = work.state
        return "" if work.error is None else why_no_state(work.error)

    def decode_aside(self, data: Buffer, decode: Callable[[Any], object], then: Decoded) -> None:
        """Decode a large one off the loop; never two at once."""
        assert not self.is_decoding
        self.is_decoding = True
        work = Unpacking(self._log, data, decode)

        def done(_: Sequence[Buffer], failure: Refused | None) -> None:
            self.is_decoding = False
            error = failure or work.error
            then(work.state, "" if error is None else why_no_state(error))

        self._reads.start(work, done, at_once=True)
