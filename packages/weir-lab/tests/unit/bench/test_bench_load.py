"""Throughput, burst and latency: small runs of the real thing, and what they do when it breaks."""

from __future__ import annotations

import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from rigs.drawn_mutants import some_of
from weir.client.client import connect
from weir.errors import WeirError
from weir_lab.bench import burst, latency, throughput
from weir_lab.bench.flow import Cpu, bottleneck, flow, shared_out
from weir_lab.bench.harness.loop import run
from weir_lab.bench.harness.open_files import allow_connections
from weir_lab.bench.harness.spread import percentiles
from weir_lab.bench.latency import sync_ms
from weir_lab.bench.sides.device_logins import Auth
from weir_lab.bench.sides.devices import BurstPlan, Crowd
from weir_lab.bench.sides.fleets import running_certified, running_for
from weir_lab.bench.sides.own import Own, OwnLone, Receiving, running_own
from weir_lab.bench.sides.side import Take, topic_name


@pytest.fixture
def own() -> Iterator[Own]:
    with running_own() as side:
        yield side


@pytest.mark.parametrize("shape", some_of(1, "produce", "both"))
def test_the_load_is_raised_and_every_message_accounted_for(
    own: Own, shape: throughput.Shape
) -> None:
    said: list[str] = []
    settings = throughput.Settings(shape, producers=3, seconds=0.05, deadline_s=30)
    result = run(throughput.measure(own, settings, said.append))
    assert result.clean
    assert result.messages > 0
    assert len(said) == len(result.stages)
    assert (result.delivery_p99_ms is None) == (shape == "produce")
    assert result.stages[0].offered_per_s == 0
    assert len(result.stages) >= 4
    assert result.messages_per_s in [stage.messages_per_s for stage in result.stages[1:]]


def test_a_topic_is_drained(own: Own) -> None:
    settings = throughput.Settings("consume", producers=2, messages=5_001)
    result = run(throughput.measure(own, settings, print))
    assert result.clean
    assert result.messages == 5_001


def test_devices_burst(own: Own) -> None:
    result, samples = run(burst.measure(own, burst.Settings(60, over_s=0.2), topic_name(1)))
    assert result.clean
    assert (result.share_confirmed, result.share_delivered) == (1, 1)
    assert result.seconds >= 0.19
    assert len(samples.confirm_ms) == 60
    assert result.problems == {}


@pytest.mark.parametrize(("auth", "tags"), [("signed", 3), ("secret", 0), ("tls", 0)])
def test_devices_burst_that_say_who_they_are(auth: Auth, tags: int) -> None:
    settings = burst.Settings(30, over_s=0.1, auth=auth, tags=tags, beside=auth == "signed")
    settings.check()
    with running_for(auth, 30, tags, None, 1) as own:
        result, _ = run(burst.measure(own, settings, topic_name(1)))
        origins = run(origins_of(own, topic_name(1)))
    assert (result.clean, result.problems) == (True, {})
    assert (result.beside_p99_ms is None) == (auth != "signed")
    assert {hub for hub, _, _ in origins} == set(range(30))
    assert {verified for _, verified, _ in origins} == {auth != "tls"}
    assert {tag for _, _, tag in origins} == ({f"site{n}" for n in range(tags)} or {None})


async def origins_of(own: Own, topic: str) -> list[tuple[int, bool, str | None]]:
    async with connect(own.url) as client:
        found = [one async for one in client.reader(topic, follow=False)]
    origins = [(one.origin, one.tag) for one in found]
    return [(one.hub, one.verified, tag) for one, tag in origins if one is not None]


def test_devices_of_another_secret_are_refused_and_counted() -> None:
    with running_for("secret", 5, 0, None, 1) as own:
        run(own.prepare("locks"))
        login = msgspec.structs.replace(own.login, key=b"x" * 32)
        done = Crowd(BurstPlan("weir", own.port, "locks", 0, 1, 5, 0.05, 10.0, login)).run()
    assert (done.confirmed, done.problems) == (0, {"refused with code 60": 5})


def test_tags_are_of_devices_that_prove_who_they_are() -> None:
    for settings in (
        burst.Settings(9, tags=1), burst.Settings(9, auth="tls", tags=1),
        burst.Settings(9, auth="secret", tags=10),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="tags"):
            settings.check()
    burst.Settings(9, auth="secret", tags=9).check()


def test_devices_that_are_refused_are_told_and_counted(own: Own) -> None:
    plan = BurstPlan("weir", own.port, "no-such-topic", 0, 1, 5, 0.05, 10.0)
    done = Crowd(plan).run()
    assert done.confirmed == 0
    assert sum(done.problems.values()) == 5
    assert all("refused with code" in what for what in done.problems)


def test_devices_without_a_broker_fail_at_once() -> None:
    done = Crowd(BurstPlan("weir", 1, "t", 0, 2, 6, 0.01, 10.0)).run()
    assert done.problems == {"connect: Connection refused": 3} or sum(done.problems.values()) == 3


def test_latencies_stand_beside_the_disks_own(own: Own) -> None:
    settings = latency.Settings(lone=20, rate=200, seconds=0.2)
    result, samples = run(latency.measure(own, settings))
    assert result.clean
    assert (len(samples.confirm_ms), len(samples.delivery_ms)) == (20, 40)
    assert 0 < (result.confirm_p50_ms or 0) <= (result.confirm_p99_ms or 0)
    assert result.share_delivered == 1
    assert (result.fdatasync_p50_ms or 0) > 0


def test_two_sides_are_measured_by_turns_and_all_their_parts_count() -> None:
    settings = latency.Settings(lone=20, rate=100, seconds=0.4, turns=2)
    begun: list[str] = []

    class Named(Own):
        @asynccontextmanager
        async def lone(self, topic: str, size: int) -> AsyncIterator[OwnLone]:
            begun.append(f"{self.label} {topic}")
            async with super().lone(topic, size) as found:
                yield found

    with running_own() as plain, running_certified(None, 1) as secure:
        sides = [Named(one.node, url=one.url) for one in (plain, secure)]
        for side, label in zip(sides, ("plain", "tls"), strict=True):
            side.label = label
        plans = [(sides[0], settings), (sides[1], msgspec.structs.replace(settings, tls=True))]
        found = run(latency.measure_by_turns(plans))
    # Lone ones, then those at a rate; who was last is first in the next turn.
    turns = [("plain", 1), ("plain", 2), ("tls", 1), ("tls", 2)]
    turns += [("tls", 3), ("tls", 4), ("plain", 3), ("plain", 4)]
    assert begun == [f"{label} {topic_name(number)}" for label, number in turns]
    for result, samples in found:
        assert result.clean
        assert result.messages == 40
        assert (len(samples.confirm_ms), len(samples.delivery_ms)) == (20, 40)
    assert [result.tls for result, _ in found] == [False, True]
    more = latency.beside_plain(found[1][0], found[0][0]).tls_delivery_more_ms
    assert more == (found[1][0].delivery_p50_ms or 0) - (found[0][0].delivery_p50_ms or 0)


def test_a_flow_that_does_not_end_says_how_far_it_got(own: Own) -> None:
    counts = shared_out(3_000_000, 1)
    with pytest.raises(WeirError, match=r"within 0\.05 s"):
        run(flow(own, topic_name(1), "both", counts, 100, 0.05))


class Dying(Own):
    """A node that is killed when its first messages arrive."""

    def consume(self, topic: str, size: int, take: Take) -> AbstractAsyncContextManager[Receiving]:
        def last(offsets: memoryview, data: memoryview) -> None:
            take(offsets, data)
            self.node.kill()

        return super().consume(topic, size, last)


def test_a_node_that_dies_fails_the_flow(own: Own) -> None:
    with pytest.raises(WeirError, match="the node ended during the run"):
        run(flow(Dying(own.node), topic_name(1), "both", [20_000_000], 100, 2.0))


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (throughput.Settings(producers=0), "producers=0"),
        (throughput.Settings(size=15), "size=15"),
        (throughput.Settings(seconds=0), "seconds and deadline"),
        (burst.Settings(0), "devices=0"),
        (burst.Settings(over_s=0), "over and deadline"),
        (latency.Settings(lone=0), "lone, rate"),
        (latency.Settings(lone=2, turns=3), "turns=3"),
        (latency.Settings(size=3), "size=3"),
    ],
)
def test_what_cannot_be_measured_is_named(
    settings: throughput.Settings | burst.Settings | latency.Settings, what: str
) -> None:
    with pytest.raises(ValueError, match=what):
        settings.check()


@pytest.mark.parametrize(
    ("one_thread", "cpu", "busiest", "what"),
    [
        (False, Cpu(1.0, 9.5, 1.0), 9.0, "client: producer"),
        (False, Cpu(1.0, 1.0, 9.0), 1.0, "client: consumer"),
        (True, Cpu(9.0, 0.1, 0.1), 0.1, "server: its one thread"),
        (False, Cpu(9.6, 0.1, 0.1), 0.1, "server"),
        (False, Cpu(1e3, 0.1, 0.1), 0.1, "all "),
        (False, Cpu(None, 0.1, 0.1), 0.1, "waiting for the disk"),
    ],
)
def test_what_held_a_run_back_is_told_from_cpu_time(
    one_thread: bool, cpu: Cpu, busiest: float, what: str
) -> None:
    assert bottleneck(one_thread, cpu, 10.0, busiest).startswith(what)


def test_percentiles_are_samples() -> None:
    samples = [float(n) for n in range(1, 101)]
    assert percentiles(samples, 0.5, 0.99, 0.999) == [50, 99, 100]
    assert percentiles([7.0], 0.5, 0.99) == [7, 7]
    assert percentiles([], 0.5) == [None]


def test_the_disk_is_timed(tmp_path: Path) -> None:
    found = sync_ms(tmp_path, 5)
    assert len(found) == 5
    assert min(found) > 0
    assert [*tmp_path.iterdir()] == []


def test_too_few_open_files_are_said_and_enough_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, 4_096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: taken.append(limits))
    allow_connections(500)
    allow_connections(2_000)
    assert taken == [(2_256, 4_096)]
    with pytest.raises(WeirError, match=r"`ulimit -Hn 8256` as root"):
        allow_connections(8_000)
