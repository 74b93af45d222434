"""What chaos of tiers counts as wrong, how stalls are counted, and links that are cut."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from weir.testing.nodes import HOST, free_ports
from weir_lab.bench.faults.chaos import tiers
from weir_lab.bench.faults.chaos.crew import CrewLedger
from weir_lab.bench.faults.chaos.relay_tree import LinkProxy
from weir_lab.bench.faults.chaos.tiers import (
    Ledger,
    Reading,
    Row,
    Settings,
    judge,
    judge_core,
)

TRUTH: list[Row] = [(0, 0, 5, b"0"), (1, 0, 6, b"1"), (0, 1, 7, b"2"), (1, 1, 8, b"3")]


def test_what_the_core_holds_in_its_order_is_right() -> None:
    assert judge("a", TRUTH, TRUTH) == (Reading("a", 4, 0, 0, 0, 0), [])


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([TRUTH[0], TRUTH[1], TRUTH[3]], Reading("a", 3, 1, 0, 0, 0)),
        ([TRUTH[0], TRUTH[1], TRUTH[1], *TRUTH[2:]], Reading("a", 5, 0, 1, 0, 0)),
        ([TRUTH[1], TRUTH[0], *TRUTH[2:]], Reading("a", 4, 0, 0, 1, 0)),
        ([(0, 0, 4, b"0"), *TRUTH[1:]], Reading("a", 4, 0, 0, 0, 1)),
        ([(0, 0, 5, b"x"), *TRUTH[1:]], Reading("a", 4, 0, 0, 0, 1)),
        ([*TRUTH, (2, 0, 9, b"4")], Reading("a", 5, 0, 0, 0, 1)),
    ],
    ids=["lost", "repeated", "out of order", "another stamp", "another value", "not in the core"],
)
def test_each_kind_of_wrong_is_counted(given: list[Row], found: Reading) -> None:
    reading, examples = judge("a", given, TRUTH)
    assert (reading, len(examples)) == (found, 1)


def test_the_core_itself_is_judged_by_what_it_confirmed() -> None:
    confirmed = [b"0", b"1", b"2", b"3"]
    assert judge_core(confirmed, TRUTH) == (Reading("core", 4, 0, 0, 0, 0), [])
    beside = [*TRUTH[:3], (1, 1, 8, b"2")]
    found, examples = judge_core(confirmed, beside)
    assert (found, len(examples)) == (Reading("core", 4, 1, 1, 0, 0), 2)
    unconfirmed = [*TRUTH, (0, 2, 9, b"4")]  # its confirm was lost: it may be there
    assert judge_core(confirmed, unconfirmed)[0] == Reading("core", 5, 0, 0, 0, 0)


def test_a_cluster_is_judged_by_what_came_and_by_what_acks_did() -> None:
    ledger, truth = CrewLedger(), [row[:2] for row in TRUTH]
    for place in [*truth, (0, 1)]:
        ledger.given[place] += 1
        ledger.done[place] = 1
    assert ledger.judge(truth) == (0, 0, [])
    assert ledger.given_again == 1
    ledger.done[0, 1] += 1
    assert ledger.judge([*truth, (1, 2)]) == (
        1, 1, ["cluster: 1/2 did not come", "cluster: 0/1 was done 2 times"],
    )  # fmt: skip


def test_a_stall_begins_with_the_confirm_or_with_the_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr(tiers.time, "monotonic", lambda: now[0])
    ledger = Ledger()
    for at, (confirmed, given) in enumerate([(1.0, 1.5), (2.0, 9.0), (8.0, 9.5)]):
        ledger.confirmed[b"%d" % at] = confirmed
        now[0] = given
        ledger.give("a", (0, at, at, b"%d" % at))
    assert ledger.stall_ms("a", 0.0) == 7_000
    assert ledger.stall_ms("a", 3.0) == 6_000  # what came before the fault is none of its stalls
    assert ledger.stall_ms("a", 9.2) == pytest.approx(300)
    assert ledger.stall_ms("b", 0.0) == 0


@pytest.mark.parametrize("wrong", [{"times": 0}, {"rate": 0.5}, {"down_s": 0}, {"calm_s": 61}])
def test_what_cannot_be_measured_is_refused(wrong: dict[str, int]) -> None:
    Settings().check()
    with pytest.raises(ValueError, match=r"must be|lasts|times"):
        Settings(**wrong).check()


def test_a_cut_link_breaks_and_comes_back() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(100):
                writer.write(data)
        writer.close()

    async def answered(port: int) -> bytes:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"x")
        try:
            return await reader.read(1)
        except ConnectionResetError:
            return b""
        finally:
            writer.close()

    async def play() -> None:
        at, target = free_ports(2)
        server = await asyncio.start_server(echo, HOST, target)
        proxy = LinkProxy(at, target)
        await proxy.start()
        reader, writer = await asyncio.open_connection(HOST, at)
        writer.write(b"y")
        assert await reader.read(1) == b"y"
        proxy.cut()
        with suppress(ConnectionResetError):
            assert await reader.read(1) == b""
        writer.close()
        assert await answered(at) == b""
        proxy.heal()
        assert await answered(at) == b"x"
        await proxy.close()
        server.close()

    asyncio.run(asyncio.wait_for(play(), 20))
