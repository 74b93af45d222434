"""What the supervisor of a node and its shard processes say to each other.

They hold the two ends of a socket pair. A line of JSON is a message; a `NewTrunk` carries one end
of another socket pair, whose other end went to another shard. So trunks need no names, ports or
passwords: nobody but the supervisor can give one away. Either side learns of the other's end,
however it came, by the end of the stream.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from weir.server.config import Config
from weir.server.disk.node_folder import Founded

_READ_BYTES = 1 << 16
_ENDS_MAX = 64


class Assignment(msgspec.Struct, frozen=True, tag="assignment"):
    """First message to a process: which shard of which node to be, and where it is reached."""

    config: Config
    founded: Founded
    shard: int
    shards: int
    #: The shards' own ports, by number.
    ports: tuple[int, ...]


class NewTrunk(msgspec.Struct, frozen=True, tag="trunk"):
    """Here is a trunk: `shard` has the other end, and is asked by you, or asks you."""

    shard: int
    asks: bool


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Drain, then end."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """This shard serves."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """This shard cannot serve, and starting it again would not help: maybe a `file`."""

    reason: str
    errno: int = 0
    file: str | None = None


class Drained(msgspec.Struct, frozen=True, tag="drained"):
    """This shard stopped, with everything drained or not."""

    everything: bool


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """This shard's loop turns; told every `ALIVE_SECONDS`."""


class Away(msgspec.Struct, frozen=True, tag="away"):
    """Which shards of the node do not serve now: it is not ready as a whole.

    Those that stand still are `silent`: their trunks are cut, and given anew when they go on.
    """

    shards: tuple[int, ...]
    silent: tuple[int, ...] = ()


class TrunkLost(msgspec.Struct, frozen=True, tag="lost"):
    """The trunk by which this shard asked `shard` broke."""

    shard: int


ToShard = Assignment | NewTrunk | Stop | Away
FromShard = Ready | Failed | Drained | Alive | TrunkLost


class ControlChannel:
    """One end: tells messages, and hands on those that come, each with the socket it carries."""

    def __init__(
        self, end: socket.socket, kinds: Any, received: Callable[[Any, socket.socket | None], None],
        over: Callable[[], None],
    ) -> None:  # fmt: skip
        """Read messages of `kinds` on the running loop; `over` is called when the other is gone."""
        end.setblocking(False)
        self._end = end
        self._decode = msgspec.json.Decoder(kinds).decode
        self._received = received
        self._over = over
        self._pending = b""
        self._ends: deque[int] = deque()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(end, self._read)

    def tell(self, message: ToShard | FromShard, end: socket.socket | None = None) -> bool:
        """Send a message, with a socket or without; in vain if the other end is gone.

        False if the other end has not read for long, so that there is no room.
        """
        line = msgspec.json.encode(message) + b"\n"
        try:
            sent = socket.send_fds(self._end, [line], [] if end is None else [end.fileno()])
        except BlockingIOError:
            return False
        except OSError:
            return True
        return sent == len(line)

    def close(self) -> None:
        """Hear and say nothing any more."""
        self._loop.remove_reader(self._end)
        self._end.close()
        while self._ends:
            socket.socket(fileno=self._ends.popleft()).close()

    def _read(self) -> None:
        try:
            data, ends, _, _ = socket.recv_fds(self._end, _READ_BYTES, _ENDS_MAX)
        except BlockingIOError:
            return
        except OSError:
            data, ends = b"", []
        self._ends += ends
        if not data:
            self._loop.remove_reader(self._end)
            self._over()
            return
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            message = self._decode(line)
            end = None
            if _carries(message):
                if not self._ends:  # this process has no file descriptor left
                    self._loop.remove_reader(self._end)
                    self._over()
                    return
                end = socket.socket(fileno=self._ends.popleft())
            self._received(message, end)


def _carries(message: object) -> bool:
    return isinstance(message, NewTrunk)
