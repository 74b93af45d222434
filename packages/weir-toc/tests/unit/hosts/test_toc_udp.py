"""The socket: bursts, segments in order, and what the kernel refuses."""

from __future__ import annotations

import pytest

from weir_toc.hosts.batches import BATCH_MAX, BATCHED_BYTES_MAX
from weir_toc.hosts.udp import BURST_BYTES, Address, UdpSocket, address_of
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
    assert not receiver.is_drained
    assert read(receiver) == [b"1", b"22"]
    assert receiver.is_drained
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
    assert one.is_drained


def test_addresses_have_one_form() -> None:
    assert address_of("localhost:7") == ("localhost", 7)
    assert address_of("[::1]:7") == ("::1", 7)
    for text in ("localhost", ":7", "localhost:x", "localhost:65536"):
        with pytest.raises(ValueError, match="not of the form"):
            address_of(text)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_packets_of_many_addresses_leave_and_come_in_one_call(host: str) -> None:
    receivers = [UdpSocket((host, 0)) for _ in range(70)]
    sender = UdpSocket((host, 0))
    sent = [(b"%d %d" % (turn, number), one.address) for turn in range(3) for number, one in
            enumerate(receivers)]  # fmt: skip
    send(sender, sent)
    assert sender.counters.batches == 1
    for number, one in enumerate(receivers):
        assert read(one) == [b"%d %d" % (turn, number) for turn in range(3)]
        one.send([(b"back", sender.address, 4)])
    back = [(one.data, one.address) for one in sender.read()]
    assert back == [(b"back", one.address) for one in receivers]
    for one in (*receivers, sender):
        one.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("odd", [None, "a run", "a long one", "a name"])
def test_each_of_many_receivers_gets_its_own_packet(host: str, odd: str | None) -> None:
    """As a switch sends beacons: no two go to one address, unless one of them is no beacon."""
    receivers = [UdpSocket((host, 0)) for _ in range(BATCH_MAX + 9)]
    sender = UdpSocket((host, 0))
    for turn in range(3):  # what one call leaves behind is not in the next one
        sent = [(b"%d-" % turn + bytes([number]) * (number % 40 + 1), one.address)
                for number, one in enumerate(receivers)]  # fmt: skip
        sent = sent[turn * 20 :]
        packets = [(data, to, len(data)) for data, to in sent]
        if odd == "a run":
            packets[7] = (b"two" * 2, packets[7][1], 3)
        elif odd == "a long one":
            packets[7] = (bytes(BATCHED_BYTES_MAX + 1), packets[7][1], BATCHED_BYTES_MAX + 1)
        elif odd == "a name" and host == "127.0.0.1":
            packets[7] = (packets[7][0], ("localhost", packets[7][1][1]), packets[7][2])
        sender.send(packets)
        for one, (data, _, size) in zip(receivers[turn * 20 :], packets, strict=True):
            assert read(one) == [bytes(each) for each in split(data, size)]
    assert sender.counters.unsent == 0
    for one in (*receivers, sender):
        one.close()


def test_packets_keep_their_order_around_a_run_and_an_address_that_is_a_name() -> None:
    one, other, sender = UdpSocket(HERE), UdpSocket(HERE), UdpSocket(HERE)
    named = ("localhost", one.address[1])
    send(sender, [(b"1", one.address), (b"a", other.address), (b"2", one.address)])
    sender.send([(b"33", one.address, 2), (b"b", other.address, 1), (b"4455", one.address, 2),
                 (b"c", other.address, 1), (b"6", named, 1), (b"7", one.address, 1)])  # fmt: skip
    assert read(one) == [b"1", b"2", b"33", b"44", b"55", b"6", b"7"]
    assert read(other) == [b"a", b"b", b"c"]
    assert sender.counters.unsent == 0
    for each in (one, other, sender):
        each.close()


def test_what_the_kernel_does_not_take_is_counted_and_harms_no_other() -> None:
    receiver, sender = UdpSocket(HERE), UdpSocket(HERE)
    nowhere = ("255.255.255.255", 9)  # a broadcast, which was not asked for
    send(sender, [(b"1", receiver.address), (b"x", nowhere), (b"2", receiver.address),
                  (b"y", nowhere), (b"z", nowhere)])  # fmt: skip
    assert read(receiver) == [b"1", b"2"]
    assert sender.counters.unsent == 3
    receiver.close()
    sender.close()


def test_long_runs_end_a_burst() -> None:
    receiver, sender = UdpSocket(HERE), UdpSocket(HERE)
    run = bytes(1_440 * 40)
    for _ in range(12):
        sender.send([(run, receiver.address, 1_440)])
    receiver.read(1)  # from here on it knows that runs are long
    assert BURST_BYTES <= sum(len(one.data) for one in receiver.read()) < 2 * BURST_BYTES
    receiver.close()
    sender.close()


def test_a_system_without_batches_is_served_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir_toc.hosts.udp.HAS_BATCHES", False)
    test_packets_of_all_sizes_arrive_in_their_order()
    test_what_leaves_in_one_piece_comes_in_its_order(merges=True)
    test_a_burst_is_bounded()
    test_an_empty_packet_is_one()
    test_what_the_kernel_does_not_take_is_counted_and_harms_no_other()
