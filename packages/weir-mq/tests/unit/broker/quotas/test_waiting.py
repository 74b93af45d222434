"""Who waits for a quota has its turn, and what waits has a share of the memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from rigs.shards import meter_of, sessions_of
from rigs.tenants import SHOP, Tenants
from weir.broker.api.effects import Hangup, HoldReads
from weir.broker.api.events import Closed
from weir.broker.quotas.meter import HELD_MS_MAX
from weir.broker.quotas.waiting import SHARE_AT_MOST, SHARE_OF_ALL, SHARE_OF_ENTITY
from weir.errors import Overloaded
from weir.model.limits import RETRY_AFTER_MS
from weir.protocol import device as d
from weir.protocol.client import messages as m


def until_confirmed(tenants: Tenants, session: int, count: int = 1) -> int:
    """Return after how many milliseconds so many publishes of a session were confirmed."""
    found = tenants.confirmed(session)
    for ms in range(0, 60_000, 50):
        if found >= count:
            return ms
        tenants.pass_ms(50)
        found += tenants.confirmed(session)
    raise AssertionError(f"{found} of {count} publishes were confirmed within a minute")


def test_who_pipelines_much_leaves_others_their_turns(tenants: Tenants) -> None:
    """Counterexample: a read with 700 publishes was served as far as the rate went each time, and
    who came behind it found nothing and began to wait anew: for 10 s.
    """
    tenants.limit(bytes_in=10_000)
    many, other = tenants.session(10), tenants.session(11)
    tenants.pipeline(many, 8_000, *([20] * 300))
    tenants.pipeline(other, 20)
    tenants.pass_ms(500)
    assert tenants.confirmed(many) == 1
    assert until_confirmed(tenants, other) <= 400, "as soon as the first one is paid for"
    assert until_confirmed(tenants, many, 300)


def test_peers_that_pipeline_have_even_shares(tenants: Tenants) -> None:
    tenants.limit(bytes_in=20_000)
    peers = [tenants.session(session) for session in (10, 11, 12)]
    tenants.publish(peers[0], "shop", 5_000)
    for peer in peers:
        tenants.pipeline(peer, *([100] * 200))
    passes = []
    for _ in range(60):
        tenants.pass_ms(50)
        passes.append([tenants.confirmed(peer) for peer in peers])
    # Peers that have all there is by turns have even shares as well, each after two passes.
    assert all(max(one) - min(one) <= 1 for one in passes[1:])
    served = [sum(one) for one in zip(*passes, strict=True)]
    assert max(served) <= 1.25 * min(served) + 2
    account = meter_of(tenants.rig.shard).accounts[SHOP]
    size = len(tenants.rig.batch(tenants.topics["shop"], tenants.grants[11], 0, b"x" * 100).batch)
    assert sum(served) * size >= 0.85 * account.buckets[0].rate * 3, "and use what there is"


def test_a_large_request_does_not_take_what_others_were_promised(tenants: Tenants) -> None:
    tenants.limit(bytes_in=100_000)
    first, other, large = tenants.session(10), tenants.session(11), tenants.session(12)
    tenants.pipeline(first, 14_000, 10_000)
    tenants.pipeline(large, 20, 15_000)
    tenants.pipeline(other, 20, 20)
    assert until_confirmed(tenants, other, 2) <= 100
    assert until_confirmed(tenants, large, 2) > 0


def publish_by_hub(tenants: Tenants, hub: int, count: int) -> None:
    """Let a hub that said hello publish by one read: as many requests as messages."""
    tenants.rig.device(hub, *(d.publish(sn, b"x", sn) for sn in range(count)))


@pytest.fixture
def passed_over(tenants: Tenants) -> tuple[int, int]:
    """Two that wait. They were let go with a hub, which was served before them and brought fifty
    requests by one read, though it is let go as if that were one.
    """
    rig = tenants.rig
    for hub in (50, 51):
        rig.device(hub, d.hello(hub, 1, "shop/orders"))
    one, other = tenants.session(10), tenants.session(11)
    tenants.limit(requests=30)
    publish_by_hub(tenants, 50, 101)
    rig.handle(Closed(50))
    publish_by_hub(tenants, 51, 50)
    for peer in (one, other):
        tenants.ask(peer, "shop", 10)
    tenants.pass_ms(64 * 50)
    assert tenants.confirmed(one) == tenants.confirmed(other) == 0
    assert len(rig.device_replies[51]) == 51, "it has been served, and these two have not"
    return one, other


def test_who_got_nothing_in_its_turn_keeps_its_place(
    tenants: Tenants, passed_over: tuple[int, int]
) -> None:
    one, other = passed_over
    took = until_confirmed(tenants, one)
    assert 1_500 <= took <= 1_700
    assert tenants.confirmed(other) == 0
    assert until_confirmed(tenants, other) <= 50
    tenants.pass_ms(3_000)  # until that is reported
    most = tenants.use().throttled_ms
    assert 14_000 <= most <= 15_500, "what was counted once is not counted again"


def test_who_got_nothing_in_its_turn_keeps_its_clock(
    tenants: Tenants, passed_over: tuple[int, int]
) -> None:
    one, _ = passed_over
    tenants.limit(requests=1)
    took = 64 * 50
    while not tenants.refused(one):
        tenants.pass_ms(50)
        took += 50
    assert 25_000 <= took <= HELD_MS_MAX + 100


def test_many_connections_get_no_more_than_the_rate(tenants: Tenants) -> None:
    """Counterexample: one request of each was served after 30 s whatever was overdrawn, so forty
    got four times the rate. Those who were refused keep their places, so that all get the same.
    """
    tenants.limit(bytes_in=1_000)
    asking, served, due = {tenants.session(n) for n in range(10, 50)}, Counter[int](), {}
    refused = 0
    tenants.publish(tenants.session(9), "shop", 3_000)
    for one in sorted(asking):
        tenants.ask(one, "shop", 3_000)
    for now in range(0, 240_000, 50):
        for one in asking:
            if tenants.rig.replies[one]:
                if tenants.refused(one):
                    refused += 1
                    due[one] = now + RETRY_AFTER_MS
                if found := tenants.confirmed(one):
                    served[one] += found
                    due[one] = now
        for one in [one for one, at in due.items() if at <= now]:
            del due[one]
            tenants.ask(one, "shop", 3_000)
        tenants.pass_ms(50)
    assert 70 <= served.total() <= 81, "240,000 bytes in portions of 3,000"
    assert refused > 100
    assert max(served.values()) <= min(served[one] for one in asking) + 2


def test_all_that_a_peer_pipelined_is_refused_together(tenants: Tenants) -> None:
    tenants.limit(bytes_in=100)
    one = tenants.session(10)
    tenants.publish(one, "shop", 6_000)
    tenants.pipeline(one, 2_000, ("bank", 10))
    tenants.pass_ms(HELD_MS_MAX + 100)
    assert tenants.refused(one) == 2


def test_a_place_that_was_kept_goes_once_its_peer_is_served(tenants: Tenants) -> None:
    tenants.limit(bytes_in=500)
    one, other, third = tenants.session(10), tenants.session(11), tenants.session(12)
    tenants.publish(one, "shop", 15_500)
    tenants.pass_ms(HELD_MS_MAX + 2_000)
    assert tenants.held() == [(one, True), (one, False)]
    tenants.limit(bytes_in=1_000)
    tenants.pass_ms(200)
    assert isinstance(tenants.publish(one, "shop", 1), m.Confirm)
    assert tenants.held() == [], "it has overdrawn nothing"
    tenants.publish(other, "shop", 3_000)
    tenants.ask(third, "shop", 500)
    tenants.confirmed(one)
    tenants.ask(one, "shop", 500)
    assert until_confirmed(tenants, third) > 1_000
    assert tenants.confirmed(one) == 0


def test_a_hub_that_waited_too_long_is_refused_whole(tenants: Tenants) -> None:
    """None of what it pipelined overtakes what is refused: it would count as a repeat later."""
    tenants.limit(bytes_in=100)
    rig, one = tenants.rig, tenants.session(10)
    rig.device(50, d.hello(42, 1, "shop/orders"))
    tenants.publish(one, "shop", 3_100)
    rig.device(50, d.publish(0, b"x" * 2_000, 0), d.publish(1, b"y", 1))
    tenants.pass_ms(HELD_MS_MAX + 100)
    codes = [reply.code for reply in rig.device_replies[50]]
    assert codes == [0, Overloaded.code, Overloaded.code]
    rig.device(50, d.publish(2, b"x" * 2_000, 0))
    tenants.pass_ms(5_000)
    assert [reply.code for reply in rig.device_replies[50]][3:] == [0]


def test_the_first_in_line_is_served_before_large_requests(tenants: Tenants) -> None:
    """Counterexample: it was the last one of each pass, found the rate overdrawn by the large
    request of another, kept its place, and so was the last one again: for 30 s.
    """
    tenants.limit(bytes_in=10_000)
    first, small = tenants.session(9), tenants.session(10)
    large = [tenants.session(session) for session in (11, 12, 13)]
    tenants.publish(first, "shop", 12_000)
    tenants.ask(small, "shop", 100)
    for peer in large:
        tenants.pipeline(peer, *([14_000] * 5))
    assert until_confirmed(tenants, small) <= 1_200, "as soon as the first one is paid for"
    assert until_confirmed(tenants, large[0]) <= 100, "in the same pass"
    assert until_confirmed(tenants, large[1]) <= 1_600
    assert until_confirmed(tenants, large[2]) <= 1_600


def test_turns_go_round_by_requests_too(tenants: Tenants) -> None:
    tenants.limit(requests=60)
    other, many = tenants.session(10), tenants.session(11)
    for peer in (other, many):
        tenants.pipeline(peer, *([10] * 30))
    for peer in (other, many):
        tenants.confirmed(peer)
    tenants.pass_ms(400)
    served = [tenants.confirmed(peer) for peer in (other, many)]
    assert sum(served) >= 22
    assert min(served) >= 8


def test_what_others_were_promised_is_left_whatever_one_waited_for(tenants: Tenants) -> None:
    for name in ("shop", "bank"):
        tenants.limit(f"namespace:{name}", bytes_in=100_000)
    first, other, one = (tenants.session(session) for session in (10, 11, 12))
    tenants.pipeline(first, ("shop", 14_000), ("bank", 14_000), ("shop", 9_000), ("bank", 9_000))
    tenants.pipeline(one, ("shop", 50), ("bank", 15_000))
    tenants.ask(other, "bank", 20)
    assert until_confirmed(tenants, other) <= 100
    assert until_confirmed(tenants, one, 2) >= 50


def parked_bytes(tenants: Tenants) -> int:
    return sum(one.parked_bytes for one in sessions_of(tenants.rig.shard).values())


def test_what_waits_for_one_namespace_has_a_share_of_the_memory(
    make_rig: Callable[..., Any],
) -> None:
    """Counterexample: by many connections one namespace had reading held for the whole shard."""
    tenants = Tenants(make_rig(budget_bytes=1 << 20))
    tenants.limit(bytes_in=10_000)
    first, bank = tenants.session(10), tenants.session(11)
    crowd = [tenants.session(session) for session in range(20, 120)]
    tenants.held()
    tenants.publish(first, "shop", 12_000)
    for session in crowd:
        tenants.rig.replies[session].clear()
        tenants.ask(session, "shop", 14_000)
    share = (1 << 20) // SHARE_OF_ENTITY
    refused = [one for one in crowd if tenants.rig.replies[one]]
    assert {reply.code for one in refused for _, reply in tenants.rig.replies[one]} == {
        Overloaded.code
    }
    assert share - 15_000 <= parked_bytes(tenants) <= share + 15_000
    assert len(refused) == len(crowd) - -(-share // 14_040)
    assert [one for one, hold in tenants.held() if hold] == [first, *crowd], "all are held"
    assert isinstance(tenants.publish(bank, "bank", 14_000), m.Confirm)
    assert not any(isinstance(one, HoldReads) for one in tenants.rig.others)
    tenants.pass_ms(60_000)
    assert parked_bytes(tenants) == 0
    assert meter_of(tenants.rig.shard).held == 0
    tenants.publish(first, "shop", 12_000)
    tenants.ask(crowd[-1], "shop", 100)
    assert parked_bytes(tenants) > 0, "there is room again"


def test_all_that_waits_has_a_share_of_the_memory(make_rig: Callable[..., Any]) -> None:
    """Counterexample: two namespaces filled the share of all, and a third one could have nothing
    parked, though it used little more than its quota.
    """
    tenants = Tenants(make_rig(budget_bytes=1 << 20))
    names = ["shop", "bank", *(f"mill{number}" for number in range(8))]
    tenants.topics = {name: tenants.rig.topic(1, f"{name}/orders") for name in names}
    for name in names:
        tenants.limit(f"namespace:{name}", bytes_in=10_000)
    quarter, parked = (1 << 20) // SHARE_OF_ALL, []
    for at, name in enumerate(names):
        tenants.publish(tenants.session(10 + at), name, 12_000)
        for session in range(100 * at + 30, 100 * at + 60):
            tenants.ask(tenants.session(session), name, 5_000)
        account = meter_of(tenants.rig.shard).accounts[f"namespace:{name}"]
        parked.append(account.parked_bytes)
    assert quarter // 3 <= parked[2] <= quarter // 3 + 6_000, "an even part"
    assert quarter // 4 <= parked[3] <= quarter // 4 + 6_000
    assert parked[-1] == 0, "but all together have half of the budget at most"
    assert parked_bytes(tenants) <= (1 << 20) // SHARE_AT_MOST + 6_000
    tenants.pass_ms(HELD_MS_MAX + 1_000)
    tenants.publish(10, names[0], 12_000)
    tenants.ask(tenants.session(2_000), names[-1], 12_000)
    tenants.ask(tenants.session(2_001), names[-1], 5_000)
    assert account.parked_bytes > 0, "there is room again"


def test_what_was_parked_is_not_refused_later(make_rig: Callable[..., Any]) -> None:
    tenants = Tenants(make_rig(budget_bytes=1 << 20))
    tenants.limit(bytes_in=10_000)
    counts = {10: 4, 11: 6, 12: 10}
    for session, count in counts.items():
        tenants.pipeline(tenants.session(session), *([10_000] * count))
    assert parked_bytes(tenants) > (1 << 20) // SHARE_OF_ENTITY
    for session, count in counts.items():
        until_confirmed(tenants, session, count)


def test_a_hub_is_refused_by_a_code_where_too_much_waits(make_rig: Callable[..., Any]) -> None:
    tenants = Tenants(make_rig(budget_bytes=1 << 20))
    tenants.limit(bytes_in=10_000)
    rig, one = tenants.rig, tenants.session(10)
    rig.device(50, d.hello(42, 1, "shop/orders"))
    tenants.publish(one, "shop", 12_000)
    tenants.ask(one, "shop", 1 << 17)
    rig.device(50, d.publish(0, b"x" * 100, 0))
    rig.settle()
    assert [reply.code for reply in rig.device_replies[50]] == [0, Overloaded.code]
    assert (50, True) in tenants.held()


def test_a_hub_is_refused_once_its_publishes_are_confirmed(make_rig: Callable[..., Any]) -> None:
    """Counterexample: a refusal must not overtake confirms, so the hub was hung up."""
    tenants = Tenants(make_rig(budget_bytes=1 << 20))
    tenants.limit(bytes_in=10_000)
    rig, one = tenants.rig, tenants.session(10)
    rig.device(50, d.hello(42, 1, "shop/orders"))
    tenants.publish(one, "shop", 12_000)
    tenants.pipeline(one, *([14_000] * 10))
    device = sessions_of(rig.shard)[50].device
    device.in_flight = 1  # as while another shard answers a publish
    rig.device(50, d.publish(1, b"x" * 100, 0), d.publish(2, b"y", 1))
    tenants.pass_ms(500)
    assert len(rig.device_replies[50]) == 1, "it waits, as others do"
    device.in_flight = 0
    tenants.pass_ms(50)
    codes = [reply.code for reply in rig.device_replies[50]]
    assert codes == [0, Overloaded.code, Overloaded.code]
    assert not any(isinstance(one, Hangup) for one in rig.others)
    until_confirmed(tenants, one, 10)
    rig.device(50, d.publish(3, b"x" * 100, 0))
    tenants.pass_ms(HELD_MS_MAX)
    assert rig.device_replies[50][-1].code == 0
    assert len(rig.device_replies[50]) == 4


def test_who_goes_gives_its_share_of_the_memory_back(make_rig: Callable[..., Any]) -> None:
    tenants = Tenants(make_rig(budget_bytes=1 << 20))
    tenants.limit(bytes_in=10_000)
    one, other = tenants.session(10), tenants.session(11)
    tenants.publish(one, "shop", 12_000)
    tenants.ask(one, "shop", 1 << 17)
    tenants.rig.handle(Closed(one))
    tenants.ask(other, "shop", 100)
    assert 0 < parked_bytes(tenants) < 1_000
