"""The simulated network carries packets that are sent at once in pieces, each with its own fate."""

from __future__ import annotations

from random import Random

from weir_lab.toc.network import PIECE_PACKETS_MAX, Faults, Link, Network, gathered
from weir_toc.packet import split

SIZE = 48
PACKETS = [bytes((number,)) * SIZE for number in range(10)]


def arrived(seed: int, faults: Faults, packets: list[bytes]) -> list[tuple[bytes, int]]:
    """Send packets as one piece; return the pieces that arrive, and their sizes."""
    network, found = Network(Random(seed), 0, faults), list[tuple[bytes, int]]()
    piece = bytearray().join(packets)
    link = Link(1, 2, lambda _, data, size: found.append((bytes(data), size)))
    network.send_piece(link, piece, SIZE)
    network.run(1 << 40)
    assert network.packets == len(packets)
    return found


def ones(found: list[tuple[bytes, int]]) -> list[bytes]:
    return [bytes(one) for data, size in found for one in split(data, size)]


def test_without_faults_a_piece_arrives_whole_and_in_order_as_one_or_two() -> None:
    counts = set()
    for seed in range(30):
        found = arrived(seed, Faults(), PACKETS)
        assert ones(found) == PACKETS
        counts.add(len(found))
    assert counts == {1, 2}


def test_a_shorter_packet_ends_a_piece_also_if_others_overtake_it() -> None:
    for seed in range(30):
        found = arrived(seed, Faults(reordering=0.3), [*PACKETS, b"short"])
        assert sorted(ones(found)) == sorted([*PACKETS, b"short"])
        assert all(b"short" not in data[:-5] for data, _ in found)


def test_each_packet_of_a_piece_is_lost_repeated_damaged_or_overtaken_by_itself() -> None:
    lost = [ones(arrived(seed, Faults(loss=0.1), PACKETS)) for seed in range(30)]
    assert all(one == [each for each in PACKETS if each in one] for one in lost)
    assert any(0 < len(one) < len(PACKETS) for one in lost)

    repeated = [ones(arrived(seed, Faults(duplication=0.1), PACKETS)) for seed in range(30)]
    assert all({*one} == {*PACKETS} for one in repeated)
    assert any(len(PACKETS) < len(one) < 2 * len(PACKETS) for one in repeated)

    overtaken = [arrived(seed, Faults(reordering=0.1), PACKETS) for seed in range(30)]
    assert all(sorted(ones(one)) == PACKETS for one in overtaken)
    inside = [data for one in overtaken for data, size in one if len(data) > 2 * size]
    assert any([*split(data, SIZE)] != sorted(split(data, SIZE)) for data in inside)

    damaged = [ones(arrived(seed, Faults(damage=0.1), PACKETS)) for seed in range(30)]
    changed = [sum(one != other for one, other in zip(got, PACKETS, strict=True))
               for got in damaged]  # fmt: skip
    assert 0 < sum(changed) < 30 * len(PACKETS) / 2


def test_a_link_that_is_cut_carries_no_piece() -> None:
    network, found = Network(Random(1), 0, Faults()), list[bytearray]()
    network.cut.add((1, 2))
    link = Link(1, 2, lambda _, data, __: found.append(data))
    network.send_piece(link, bytearray(2 * SIZE), SIZE)
    network.run(1 << 40)
    assert not found
    assert network.packets == 2


def test_packets_of_one_size_to_one_neighbour_are_gathered() -> None:
    def sent(to: int, size: int) -> tuple[int, bytearray, int]:
        return to, bytearray(size), size

    def shape(ends_shorter: bool, *packets: tuple[int, bytearray, int]) -> list[tuple[int, ...]]:
        return [(to, len(data), size) for to, data, size in gathered(packets, ends_shorter)]

    mixed = sent(1, 9), sent(1, 9), sent(2, 9), sent(2, 5), sent(2, 5), sent(2, 9)
    assert shape(False, *mixed) == [(1, 18, 9), (2, 9, 9), (2, 10, 5), (2, 9, 9)]
    assert shape(True, *mixed) == [(1, 18, 9), (2, 14, 9), (2, 5, 5), (2, 9, 9)]
    run = 2, bytearray(4), 2
    assert shape(True, sent(2, 9), run) == [(2, 9, 9), (2, 4, 2)]  # it is no shorter packet
    many = [sent(1, 9)] * (PIECE_PACKETS_MAX + 1)
    assert shape(False, *many) == [(1, 9 * PIECE_PACKETS_MAX, 9), (1, 9, 9)]
    assert shape(False) == []
