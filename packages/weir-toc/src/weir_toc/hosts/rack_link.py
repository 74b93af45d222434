"""The link of a process to the switch of its rack: one socket for data and beacons.

Through a host representative all packets go to the switch. Otherwise data go to the addresses of
their receivers, and only what the switch itself takes goes there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from weir_toc.endpoint.flow import RUN_PACKETS_MAX
from weir_toc.hosts.batches import Sending
from weir_toc.hosts.udp import Address, OpenSocket, ends_towards
from weir_toc.packet import NEIGHBOUR, is_of_processes, receiver_of
from weir_toc.places import Place

#: A packet or a run of packets, and the bytes of each.
Piece = tuple[bytes | bytearray, int]


class RackLink:
    """The socket of one process."""

    def __init__(self, switch: Address, place: Place, open_socket: OpenSocket) -> None:
        """`switch` is where the switch of the rack takes packets."""
        #: Pieces of packets that only the switch may send, and that came from elsewhere.
        self.strangers = 0
        self._others: dict[int, Address] = {}
        #: Where the switch of the rack is.
        self.switch = switch
        self._is_direct = place.is_direct
        if place.is_direct:
            # Others send to this socket, too, so it is not connected to the switch.
            own, self._switch = ends_towards(switch)
            self._socket = open_socket((own, 0), None)
        else:
            self._switch = switch
            self._socket = open_socket(("::" if ":" in switch[0] else "0.0.0.0", 0), switch)

    @property
    def address(self) -> Address | None:
        """Where other processes send packets to; None if all come from the switch."""
        return self._socket.address if self._is_direct else None

    @property
    def kernel_drops(self) -> int:
        """How often the kernel had no room for what came; see `UdpSocket`."""
        return self._socket.kernel_drops

    def fileno(self) -> int:
        """The file descriptor of the socket."""
        return self._socket.socket.fileno()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def learn(self, present: Iterable[int], told: Mapping[int, Address]) -> None:
        """Take where other processes are. Those that are `present`, but of which nothing is told
        as they are not connected to the controller, keep their addresses.
        """
        known = self._others
        self._others = {id: known[id] for id in present if id in known} | dict(told)

    def read(self) -> Sequence[Piece] | None:
        """Return what has come, in its order; None if there was nothing."""
        burst = self._socket.read()
        if not burst:
            return None
        if not self._is_direct:
            return gathered((one.data, one.size) for one in burst)
        # Any process can reach this socket: beacons and floors are taken of the switch alone.
        taken = [
            (one.data, one.size)
            for one in burst
            if one.address == self._switch or is_of_processes(one.data, one.size)
        ]
        self.strangers += len(burst) - len(taken)
        return gathered(taken)

    def send(self, pieces: Iterable[Piece]) -> None:
        """Send packets in this order. What is for a process of unknown address is lost."""
        if not self._is_direct:
            self._socket.send([(data, self._switch, size) for data, size in pieces])
            return
        sends: list[Sending] = []
        for data, size in pieces:
            to = receiver_of(data)
            address = self._switch if to == NEIGHBOUR else self._others.get(to)
            if address is not None:
                sends.append((data, address, size))
        self._socket.send(sends)


def gathered(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the same packets in the same order, those of one size that follow each other in larger
    pieces: an endpoint takes alike messages at once, also where the kernel has not merged them.

    What is odd about one of them concerns its piece, so a piece is no larger than senders make it.
    """
    found: list[Piece] = []
    open_piece: list[bytes | bytearray] = []
    last = room = 0
    for data, size in pieces:
        if open_piece and (size != last or len(data) > room):
            found.append((_joined(open_piece), last))
            open_piece = []
        if not open_piece:
            last, room = size, size * RUN_PACKETS_MAX
        open_piece.append(data)
        # A shorter packet ends its piece.
        room = room - len(data) if not len(data) % size else 0
    if open_piece:
        found.append((_joined(open_piece), last))
    return found


def _joined(datas: Sequence[bytes | bytearray]) -> bytes | bytearray:
    return datas[0] if len(datas) == 1 else b"".join(datas)
