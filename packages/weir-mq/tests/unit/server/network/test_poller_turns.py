"""How much of the loop's time one turn of a crowd may take."""

from __future__ import annotations

import asyncio
import itertools
import socket

from weir.protocol import device as device
from weir.server.network.poller import DevicePoller, ListeningSocket

PING = device.frame(device.DeviceOpcode.PING, 1, b"")
DEVICES, PINGS = 40, 1_500
TURN_BYTES = 128 << 10
TURN_FRAMES = 1_024


class EventGatherer:
    """Notes at the end of each turn how much was read until then."""

    def __init__(self) -> None:
        self.read = self.frames = 0
        self.until = [0]
        self.frames_until = [0]

    def gather(self) -> None:
        pass

    def release(self) -> None:
        self.until.append(self.read)
        self.frames_until.append(self.frames)


class Counting(asyncio.Protocol):
    """Counts what a device says."""

    def __init__(self, gathering: EventGatherer) -> None:
        self.gathering = gathering
        self.read = 0

    def data_received(self, data: bytes) -> None:
        self.read += len(data)
        self.gathering.read += len(data)
        self.gathering.frames += self.read // len(PING) - (self.read - len(data)) // len(PING)


def test_a_turn_is_short_though_many_have_much_to_say() -> None:
    """Some 1,800 pings of each of 64 devices in one turn: nobody else was served for seconds."""

    async def play() -> None:
        gathering, listener, came = (
            EventGatherer(),
            ListeningSocket(socket.AF_INET),
            list[Counting](),
        )

        def protocol() -> Counting:
            came.append(Counting(gathering))
            return came[-1]

        async def until(count: int) -> None:
            async with asyncio.timeout(20):
                while gathering.read < count:
                    await asyncio.sleep(0.001)

        listener.setblocking(False)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        poller = DevicePoller(protocol, gathering)
        poller.open(listener)
        ends = [socket.create_connection(listener.getsockname()) for _ in range(DEVICES)]
        for end in ends:
            end.sendall(PING)
        await until(DEVICES * len(PING))
        for end in ends:
            end.sendall(PINGS * PING)
        await until(DEVICES * (1 + PINGS) * len(PING))
        read = [after - before for before, after in itertools.pairwise(gathering.until)]
        assert max(read) <= TURN_BYTES
        taken = [after - before for before, after in itertools.pairwise(gathering.frames_until)]
        # The last one that is read in a turn may bring its whole share beyond.
        assert max(taken) <= TURN_FRAMES + TURN_FRAMES // DEVICES + 2_048 // len(PING)
        assert {one.read for one in came} == {(1 + PINGS) * len(PING)}, "each had its turns"
        poller.shut()
        for end in ends:
            end.close()
        await asyncio.sleep(0.01)

    asyncio.run(play())
