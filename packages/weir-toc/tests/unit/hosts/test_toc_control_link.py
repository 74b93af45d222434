"""The connection to the leader: terms, repeated reports, and commands that come early."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any
from unittest.mock import patch

import pytest

import weir_raft as raft
from rigs.early_process import EarlyProcess
from weir_toc.controller.codec import command_to, report_to
from weir_toc.controller.entries import Completed, Fail, Freeze, ProcessJoined
from weir_toc.controller.pacing import ANSWER_NS_MIN
from weir_toc.endpoint.events import Delivered, Service
from weir_toc.errors import Fenced, NotSent
from weir_toc.hosts import process as hosts_process
from weir_toc.hosts.control_link import SILENT_SECONDS, ControlLink, Members, address_in, is_foreign
from weir_toc.hosts.frames import (
    REQUEST_BYTES_MAX,
    Address,
    Frame,
    framed_json,
    parsed,
    read_frame,
)
from weir_toc.hosts.process import Settling


class Asked:
    """Members that answer nodes with one frame each: who was asked, in this order."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.over = 0
        self.addresses: dict[str, tuple[str, int]] = {}
        self._servers: list[asyncio.Server] = []

    async def serve(self, name: str, answer: Frame) -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.order.append(name)
            writer.write(framed_json(answer))
            if answer["op"] == "welcome":
                await reader.read()
            await self.end(writer)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self._servers.append(server)
        self.addresses[name] = server.sockets[0].getsockname()[:2]

    async def end(self, writer: asyncio.StreamWriter) -> None:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        self.over += 1

    def moved(self, to: str) -> Frame:
        return {"op": "moved", "to": [*self.addresses[to]], "why": f"{to} leads"}

    async def close(self, running: asyncio.Task[None]) -> None:
        """End the link that asks, and the members once they have seen that."""
        running.cancel()
        await asyncio.wait((running,))
        await until(lambda: self.over == len(self.order))
        for one in self._servers:
            one.close()


async def until(holds: Any) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_leader_at_an_address_that_was_not_given_is_asked_behind_all_that_were(
    is_listed: bool,
) -> None:
    async def body() -> list[str]:
        asked = Asked()
        await asked.serve("leader", {"op": "welcome", "term": 2})
        await asked.serve("a", asked.moved("leader"))
        await asked.serve("b", asked.moved("leader"))
        names = ["a", "b", "leader"] if is_listed else ["a", "b"]
        given = [asked.addresses[name] for name in names]
        link = ControlLink(given, {"op": "hello", "kind": "member"})
        running = asyncio.create_task(link.run())
        await until(lambda: link.is_connected)
        await asked.close(running)
        return asked.order

    assert asyncio.run(body()) == (["a", "leader"] if is_listed else ["a", "b", "leader"])


def test_who_has_lost_its_leader_asks_the_others_before_an_address_that_was_not_given() -> None:
    async def body() -> None:
        asked = Asked()
        await asked.serve("elsewhere", {"op": "moved", "to": None, "why": "out of reach"})
        await asked.serve("b", asked.moved("elsewhere"))
        await asked.serve("c", asked.moved("elsewhere"))
        is_lost = asyncio.Event()

        async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.order.append("a")
            lost: Frame = {"op": "moved", "to": None, "why": "no leader"}
            writer.write(framed_json(lost if is_lost.is_set() else {"op": "welcome", "term": 2}))
            await is_lost.wait()
            await asked.end(writer)

        async with await asyncio.start_server(lead, "127.0.0.1", 0) as server:
            given = [asked.addresses["b"], server.sockets[0].getsockname()[:2],
                     asked.addresses["c"]]  # fmt: skip
            link = ControlLink(given, {"op": "hello", "kind": "member"})
            running = asyncio.create_task(link.run())
            await until(lambda: link.is_connected)
            is_lost.set()
            await until(lambda: asked.order.count("elsewhere") == 1)
            await asked.close(running)
        # The lost leader is asked last of those given.
        assert asked.order[: asked.order.index("elsewhere")] == ["b", "a", "b", "c", "a"]

    asyncio.run(body())


@pytest.mark.parametrize(
    ("leader", "member", "is_so"),
    [
        ("localhost", "10.0.0.1", True), ("127.0.0.1", "node-1", True), ("::1", "node-1", True),
        ("a.localhost", "10.0.0.1", True), ("127.0.0.1", "localhost", False),
        ("10.0.0.2", "10.0.0.1", False), ("node-2", "localhost", False),
    ],
)  # fmt: skip
def test_an_address_of_another_machine_itself_is_not_one_here(
    leader: str, member: str, is_so: bool
) -> None:
    assert is_foreign((leader, 7001), (member, 7001)) == is_so
    members = Members([(member, 7001)])
    assert members.choose() == (member, 7001)
    assert members.name((leader, 7002), by=(member, 7001)) is not is_so
    assert members.choose() == ((member, 7001) if is_so else (leader, 7002))


def test_a_link_says_why_it_does_not_follow_a_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir_toc.hosts.control_link.is_foreign", lambda _leader, _member: True)
    links: list[ControlLink] = []

    def link_of(address: Address) -> ControlLink:
        links.append(ControlLink([address], {"op": "hello", "kind": "member"}))
        return links[0]

    moved: Frame = {"op": "moved", "to": ["localhost", 7_002], "why": "2 leads"}
    asyncio.run(played([[moved]], link_of))
    (link,) = links
    assert link.trouble.startswith("2 leads, an address of its own machine: name one")


def test_a_link_forgets_the_members_that_did_not_lead_once_the_leader_takes_it() -> None:
    troubles: list[str] = []

    class Recorded(ControlLink):
        def _take(self, frame: Frame, received: int) -> None:
            troubles.append(self.trouble)

    links: list[ControlLink] = []

    def link_of(address: Address) -> ControlLink:
        links.append(Recorded([address], {"op": "hello", "kind": "member"}))
        return links[0]

    moved: Frame = {"op": "moved", "to": ["127.0.0.1", 1], "why": "member 2 leads"}
    welcome: Frame = {"op": "welcome", "term": 1}
    asyncio.run(played([[moved], [welcome, {"op": "names"}]], link_of))
    assert troubles == [""]


@pytest.mark.parametrize("value", [
    None, "a:1", [], ["a"], ["a", "1"], ["a", True], ["", 1], ["a", 0], ["a", 65_536], [1, 1],
])  # fmt: skip
def test_what_is_no_address_names_no_leader(value: object) -> None:
    assert address_in(value) is None
    assert address_in(["a", 65_535]) == ("a", 65_535)


async def played(scripts: Iterable[list[Frame]], link_of: Any) -> list[list[Frame]]:
    """Serve a script of frames to each connection; return what came by each."""
    heard: list[list[Frame]] = []
    rest = iter(scripts)
    ended = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = next(rest, None)
        if script is None:
            ended.set()
        else:
            heard.append([])
            for frame in script:
                writer.write(framed_json(frame))
            writer.write_eof()
            while not reader.at_eof():
                try:
                    heard[-1].append(parsed(*await read_frame(reader, REQUEST_BYTES_MAX)))
                except EOFError:
                    break
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    link = link_of(server.sockets[0].getsockname()[:2])
    running = asyncio.create_task(link.run())
    async with asyncio.timeout(30):
        await ended.wait()
    running.cancel()
    server.close()
    return heard


def command(term: int, switch: int) -> Frame:
    return {"op": "command", "term": term, "command": command_to(Freeze(switch, 1))}


def test_commands_and_leaders_of_former_terms_are_ignored() -> None:
    made: list[ControlLink] = []

    def link_of(address: tuple[str, int]) -> ControlLink:
        made.append(ControlLink([address], {"op": "hello", "kind": "member"}))
        return made[0]

    asyncio.run(played([
        [{"op": "welcome", "term": 5}, command(4, 1), command(5, 2)],
        [{"op": "welcome", "term": 4}, command(6, 3)],
        [{"op": "moved", "to": None, "why": "no leader"}],
        [{"op": "welcome", "term": 6}, command(6, 4)],
    ], link_of))  # fmt: skip
    (link,) = made
    taken = [link.frames.get_nowait()["command"][1] for _ in range(link.frames.qsize())]
    assert taken == [2, 4]
    assert link.terms.highest == 6


@pytest.mark.parametrize(
    ("round_trips", "is_set"), [([100], False), ([100] * 7, False), ([100] * 8, True),
                                ([100, 1], True), ([2], True), ([3], False)],
)  # fmt: skip
def test_a_clock_counts_as_set_once_a_comparison_was_quick_or_eight_were_made(
    round_trips: list[int], is_set: bool
) -> None:
    """The first one may be slow, and a clock that is read is drawn to the time, and not set."""
    made: list[ControlLink] = []
    at = 1_000_000_000_000

    def link_of(address: tuple[str, int]) -> ControlLink:
        hello = {"op": "hello", "kind": "member"}
        made.append(ControlLink([address], hello, raw_clock=lambda: at))
        return made[0]

    compared = [
        {"op": "clock", "sent": at - each * 1_000_000, "reached": at, "answered": at}
        for each in round_trips
    ]
    asyncio.run(played([[{"op": "welcome", "term": 5}, *compared]], link_of))
    (link,) = made
    assert link.is_set.is_set() == is_set
    assert link.read_clock().time == at + min(round_trips) * 500_000


def test_a_link_that_is_ended_as_its_connection_ends_makes_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body() -> None:
        is_ending, may_end = asyncio.Event(), asyncio.Event()

        async def sample(_link: ControlLink, _writer: asyncio.StreamWriter) -> None:
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                is_ending.set()
                await may_end.wait()
                raise

        async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(framed_json({"op": "welcome", "term": 1}))
            writer.close()

        monkeypatch.setattr(ControlLink, "_sample", sample)
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        link = ControlLink([server.sockets[0].getsockname()], {"op": "hello", "kind": "member"})
        running = asyncio.create_task(link.run())
        async with server, asyncio.timeout(30):
            await is_ending.wait()
            running.cancel()
            may_end.set()
            await asyncio.wait((running,), timeout=5)
            assert running.cancelled()

    asyncio.run(body())


def test_a_leader_that_stands_still_is_left_before_the_next_one_gives_nodes_up() -> None:
    election_seconds = raft.Config(1, (1,)).election_ms / 1e3
    assert election_seconds + ANSWER_NS_MIN / 1e9 > 2 * SILENT_SECONDS


def test_a_report_is_repeated_until_it_is_confirmed() -> None:
    def link_of(address: tuple[str, int]) -> ControlLink:
        link = ControlLink([address], {"op": "hello", "kind": "member"})
        for process in (1, 2):
            link.report(ProcessJoined(process))
        return link

    welcome: Frame = {"op": "welcome", "term": 1}
    heard = asyncio.run(played([
        [welcome], [welcome, {"op": "done", "number": 1}], [welcome],
    ], link_of))  # fmt: skip
    first = {"op": "report", "report": report_to(ProcessJoined(1)), "number": 1}
    second = {"op": "report", "report": report_to(ProcessJoined(2)), "number": 2}
    told = [[one for one in frames if one["op"] == "report"] for frames in heard]
    assert told == [[first, second], [first, second], [second]]


def test_a_failure_that_is_told_before_admission_is_answered_after_it() -> None:
    async def body() -> None:
        early = EarlyProcess()
        early.told(Fail(1, 3, ((2, 5),)))
        assert early.reports() == []
        early.admitted()
        assert early.reports() == [report_to(Completed(3, 1))]
        early.close()

    asyncio.run(body())


def test_what_leaves_after_the_end_is_nobody_s() -> None:
    async def body() -> None:
        early = EarlyProcess()
        early.admitted()
        sending = asyncio.ensure_future(early.process.send_many(Service.RELIABLE, [[(2, b"x")]]))
        await asyncio.sleep(0)
        early.process.end(Fenced("excluded"))
        early.granted(2)
        with pytest.raises(Fenced):
            await sending
        early.close()

    asyncio.run(body())


def test_a_best_effort_send_that_lost_all_its_receivers_is_told_by_its_call_alone() -> None:
    """It never left, so there is no stamp to which events could belong."""

    async def body() -> None:
        early = EarlyProcess()
        early.admitted()
        parts = [(2, b"x"), (3, b"x")]
        sending = asyncio.ensure_future(early.process.send_many(Service.BEST_EFFORT, [parts]))
        await asyncio.sleep(0)
        early.told(Fail(1, 3, ((2, 5), (3, 5))))
        with pytest.raises(NotSent, match="as of process 3: process failed"):
            await sending
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await early.process.take(Service.BEST_EFFORT)
        early.close()

    asyncio.run(body())


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"op": "done", "decided": True}, "the controller does not keep any more"),
        ({"op": "done", "decided": False}, "the controller did not tell within 0.05 s"),
        ({"op": "done", "decided": True, "recalled": [[2, 5]]}, "is no list"),
        ({"op": "done", "decided": True, "failed": [], "recalled": []}, ""),
    ],
)
def test_who_is_excluded_is_told_why_what_it_held_is_lost(answer: Frame, words: str) -> None:
    async def body() -> str:
        early = EarlyProcess()
        early.admitted()
        early.holds_a_message(by=2)
        async with asyncio.timeout(30):
            await early.excluded(answer)
        if not words:
            (delivered,) = await early.process.take(Service.RELIABLE)
            assert isinstance(delivered, Delivered)
            assert [row[3] for row in delivered.rows] == [b"x"]
        with pytest.raises(Fenced) as found:
            await early.process.take(Service.RELIABLE)
        early.close()
        return str(found.value)

    with patch.object(hosts_process, "SETTLE_SECONDS", 0.05):
        said = asyncio.run(body())
    assert words in said
    assert ("is lost" in said) == bool(words)


@pytest.mark.parametrize(
    ("frames", "is_told"),
    [
        ([{"op": "excluded"}], False),
        ([{"op": "excluded", "cut_off": False}], False),
        ([{"op": "excluded", "cut_off": True}], True),
        # Its switch, or its clock, may have ended it before.
        ([{"op": "excluded"}, {"op": "excluded", "cut_off": True}], True),
    ],
)
def test_who_was_cut_off_is_told_that_others_may_not_deliver_the_same(
    frames: list[Frame], is_told: bool
) -> None:
    async def body() -> str:
        early = EarlyProcess()
        early.admitted()
        await early.excluded({}, *frames)
        with pytest.raises(Fenced) as found:
            await early.process.take(Service.RELIABLE)
        early.close()
        return str(found.value)

    assert ("Its rack was cut off" in asyncio.run(body())) == is_told


def test_a_failure_is_answered_once_all_of_it_is_settled() -> None:
    settling = Settling()
    assert settling.begin(3, (2, 4)) == []
    assert settling.settle(2) == []
    assert settling.begin(5, (2,)) == [5]
    assert settling.settle(4) == [3]
    assert settling.begin(3, (2, 4)) == [3]  # a new leader asks again
