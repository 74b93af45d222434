"""The socket: bursts, segments in order, and what the kernel refuses."""

from __future__ import annotations

import pytest

from weir_toc.hosts.udp import UdpSocket, address_of
from weir_toc.packet import PACKET_BYTES_MAX

HERE = ("127.0.0.1", 0)


def test_packets_of_all_sizes_arrive_in_their_order() -> None:
    receiver, other, sender = UdpSocket(HERE), UdpSocket(HERE), UdpSocket(HERE)
    sizes = [100, 100, 100, 40, 100, 1_440, 1_440, 7, *[60] * 200]
    packets = [(bytes([number % 256]) * size, receiver.address) for number, size in
               enumerate(sizes)]  # fmt: skip
    packets.insert(2, (b"other", other.address))
    sender.send(packets)
    found = receiver.read()
    assert [data for data, _ in found] == [data for data, _ in packets if data != b"other"]
    assert {address for _, address in found} == {sender.address}
    assert [data for data, _ in other.read()] == [b"other"]
    assert sender.counters.unsent == 0
    for one in (receiver, other, sender):
        one.close()


def test_a_burst_is_bounded_and_a_long_packet_cut() -> None:
    receiver, sender = UdpSocket(HERE), UdpSocket(HERE)
    assert receiver.read() == []
    sender.send([(bytes(3_000), receiver.address), (b"1", receiver.address),
                 (b"2", receiver.address)])  # fmt: skip
    assert len(receiver.read(1)[0][0]) == PACKET_BYTES_MAX + 1
    assert [data for data, _ in receiver.read()] == [b"1", b"2"]
    receiver.close()
    sender.close()


def test_a_receiver_that_is_gone_harms_nobody() -> None:
    receiver = UdpSocket(HERE)
    sender = UdpSocket(HERE, receiver.address)
    receiver.close()
    for _ in range(5):
        sender.send([(b"one", sender.remote), (b"two", sender.remote)])
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
