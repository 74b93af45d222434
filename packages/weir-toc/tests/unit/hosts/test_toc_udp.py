"""The socket: bursts, segments in order, and what the kernel refuses."""

from __future__ import annotations

import pytest

from weir_toc.hosts.udp import Address, UdpSocket, address_of
from weir_toc.packet import split

HERE = ("127.0.0.1", 0)


def send(sender: UdpSocket, packets: list[tuple[bytes, Address]]) -> None:
    sender.send([(data, to, len(data)) for data, to in packets])


def read(receiver: UdpSocket) -> list[bytes]:
    """All packets that have come, one by one."""
    return [bytes(one) for train in receiver.read() for one in split(train.data, train.size)]


def test_packets_of_all_sizes_arrive_in_their_order() -> None:
    receiver, other, sender = UdpSocket(HERE), UdpSocket(HERE), UdpSocket(HERE)
    sizes = [100, 100, 100, 40, 100, 1_440, 1_440, 7, *[60] * 200]
    packets = [(bytes([number % 256]) * size, receiver.address) for number, size in
               enumerate(sizes)]  # fmt: skip
    packets.insert(2, (b"other", other.address))
    send(sender, packets)
    assert read(receiver) == [data for data, _ in packets if data != b"other"]
    assert {one.address for one in other.read()} == {sender.address}
    assert sender.counters.unsent == 0
    for one in (receiver, other, sender):
        one.close()


def test_a_burst_is_bounded() -> None:
    receiver, sender = UdpSocket(HERE), UdpSocket(HERE)
    assert receiver.read() == []
    send(sender, [(bytes(3_000), receiver.address), (b"1", receiver.address),
                  (b"22", receiver.address)])  # fmt: skip
    assert [(len(one.data), one.size) for one in receiver.read(1)] == [(3_000, 3_000)]
    assert read(receiver) == [b"1", b"22"]
    receiver.close()
    sender.close()


@pytest.mark.parametrize("merges", [True, False])
def test_what_leaves_in_one_piece_comes_in_its_order(merges: bool) -> None:
    receiver, sender = UdpSocket(HERE), UdpSocket(HERE)
    if not merges:  # as a kernel that knows neither option
        receiver.socket.setsockopt(17, 104, 0)
        sender.socket.setsockopt(17, 104, 0)
    packets = [b"%04d" % number for number in range(150)]
    sender.send([(b"".join(packets[:3]), receiver.address, 4), (b"long", receiver.address, 4),
                 (b"".join(packets[3:]), receiver.address, 4)])  # fmt: skip
    assert read(receiver) == [*packets[:3], b"long", *packets[3:]]
    assert sender.counters.batches == 4
    receiver.close()
    sender.close()


def test_an_empty_packet_is_one() -> None:
    receiver, sender = UdpSocket(HERE), UdpSocket(HERE)
    send(sender, [(b"", receiver.address), (b"1", receiver.address)])
    assert [one.data for one in receiver.read()] == [b"", b"1"]
    receiver.close()
    sender.close()


def test_a_receiver_that_is_gone_harms_nobody() -> None:
    receiver = UdpSocket(HERE)
    sender = UdpSocket(HERE, receiver.address)
    receiver.close()
    for _ in range(5):
        send(sender, [(b"one", sender.remote), (b"two", sender.remote)])
        assert sender.read() == []
    sender.close()


def test_a_socket_that_is_closed_has_nothing_to_read() -> None:
    one = UdpSocket(HERE)
    one.close()
    assert one.read() == []


def test_addresses_have_one_form() -> None:
    assert address_of("localhost:7") == ("localhost", 7)
    assert address_of("[::1]:7") == ("::1", 7)
    for text in ("localhost", ":7", "localhost:x", "localhost:65536"):
        with pytest.raises(ValueError, match="not of the form"):
            address_of(text)
