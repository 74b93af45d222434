"""What peers of a shard use is charged to whom it concerns, and who uses too much waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rigs.access import close_access, give, rule
from rigs.shards import catalog_of, meter_of, sessions_of
from rigs.tenants import SHOP, Tenants
from weir.broker.api.effects import AssignNamespace, Hangup, Send
from weir.broker.api.events import Closed
from weir.broker.quotas.meter import HELD_MS_MAX
from weir.errors import QuotaExceeded
from weir.protocol import device as d
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client import quotas as q
from weir.protocol.client.codec import ClientStream, decode_notice, is_notice


def test_who_publishes_too_much_is_not_read_from_until_that_is_over(tenants: Tenants) -> None:
    tenants.limit(bytes_in=10_000)
    one = tenants.session(10)
    assert isinstance(tenants.publish(one, "shop", 1_000), m.Confirm)
    assert tenants.held() == []
    assert isinstance(tenants.publish(one, "shop", 11_000), m.Confirm), "what came is taken"
    assert tenants.held() == [(one, True)]
    tenants.pass_ms(900)
    assert tenants.held() == []
    tenants.pass_ms(200)
    assert tenants.held() == [(one, False)]


def test_a_shard_does_not_rest_while_a_peer_waits_for_a_quota(tenants: Tenants) -> None:
    tenants.limit(bytes_in=10_000)
    one = tenants.session(10)
    tenants.pass_ms(500)
    assert tenants.rig.shard.idle_ms(1_000) == 1_000
    tenants.publish(one, "shop", 12_000)
    tenants.pass_ms(500)
    assert tenants.held() == [(one, True)]
    assert tenants.rig.shard.idle_ms(1_000) == 0, "it would be let go up to a second too late"
    tenants.pass_ms(1_000)
    assert tenants.held() == [(one, False)]
    assert tenants.rig.shard.idle_ms(1_000) == 1_000


def test_the_other_namespace_is_not_concerned(tenants: Tenants) -> None:
    tenants.limit(bytes_in=10_000)
    one, other = tenants.session(10), tenants.session(11)
    tenants.publish(one, "shop", 12_000)
    tenants.publish(other, "bank", 15_000)
    assert tenants.held() == [(one, True)]
    assigned = [one for one in tenants.rig.others if isinstance(one, AssignNamespace)]
    assert assigned == [AssignNamespace(one, "shop"), AssignNamespace(other, "bank")]


def test_an_account_is_one_for_all_connections(tenants: Tenants) -> None:
    """Who connects again owes what it owed; and they are let go in the order in which they came."""
    tenants.limit(bytes_in=10_000)
    for session in (10, 11, 12):
        tenants.session(session)
        tenants.ask(session, "shop", 4_000)
    assert tenants.held() == [(10, True), (11, True), (12, True)]
    let_go: list[int] = []
    for _ in range(60):
        tenants.pass_ms(50)
        now = [session for session, hold in tenants.held() if not hold]
        assert len(now) <= 1, "there is no room for what two of them bring"
        let_go += now
    assert let_go == [10, 11, 12, 11, 12], "two are let go as their turn comes, and owe it then"


def test_a_principal_has_one_account_for_all_its_connections(tenants: Tenants) -> None:
    sessions = [tenants.session(session) for session in (10, 11, 12)]
    tenants.limit("anonymous", bytes_in=50_000)
    for session in sessions:
        tenants.publish(session, "shop", 4_000)
    assert tenants.held() == [(12, True)], "the third one overdraws what all of them share"


def test_over_a_minute_the_rate_is_kept_to_by_any_number_of_connections(tenants: Tenants) -> None:
    tenants.limit(bytes_in=10_000)
    idle = {tenants.session(session) for session in range(10, 15)}
    for _ in range(400):
        for session in sorted(idle):
            tenants.ask(session, "shop", 500)
        for session, hold in tenants.held():
            (idle.discard if hold else idle.add)(session)
        tenants.pass_ms(50)
        for session, hold in tenants.held():
            (idle.discard if hold else idle.add)(session)
    assert 0.9 * 200_000 <= tenants.sent <= 1.02 * 200_000 + 2_000 + 5 * 600


def test_nobody_is_held_for_longer_than_that(tenants: Tenants) -> None:
    tenants.limit(bytes_in=10)
    one = tenants.session(10)
    tenants.publish(one, "shop", 10_000)
    tenants.pass_ms(HELD_MS_MAX - 100)
    assert tenants.held() == [(one, True)]
    tenants.pass_ms(200)
    assert tenants.held() == [(one, False)], "it may say goodbye"
    tenants.ask(one, "shop", 1)
    assert tenants.held() == [(one, True)]
    before = stored(tenants)
    tenants.pass_ms(HELD_MS_MAX)
    assert tenants.refused(one) == 1
    tenants.pass_ms(50)
    assert tenants.held()[-1] == (one, False)
    assert stored(tenants) == before, "the rate is kept to"


def test_what_is_read_is_charged_where_it_goes(tenants: Tenants) -> None:
    tenants.limit(bytes_out=10_000)
    one, reader = tenants.session(10), tenants.session(11)
    for _ in range(4):
        tenants.publish(one, "shop", 5_000)
    address = tenants.topics["shop"].addresses[0]
    assert isinstance(tenants.rig.answer(reader, m.Fetch(address, 0, 1 << 20, 0)), m.Fetched)
    assert tenants.held() == [(reader, True)]
    tenants.pass_ms(2_500)
    assert tenants.held() == [(reader, False)]
    assert tenants.use().throttled_ms >= 1_800


def test_requests_have_a_rate_of_their_own(tenants: Tenants) -> None:
    tenants.limit("anonymous", requests=10)
    one = tenants.session(10)
    tenants.held()
    tenants.pass_ms(1_000)
    for _ in range(5):
        tenants.rig.ask(one, m.Ping())
    assert (one, True) in tenants.held()


def test_nobody_is_charged_for_what_another_may_not_do(make_rig: Callable[..., Any]) -> None:
    tenants = Tenants(make_rig())
    tenants.limit(bytes_in=10_000)
    stranger = tenants.session(10)
    rig, access = tenants.rig, catalog_of(tenants.rig.shard).access
    principal = give(access, "bank/eve", rule("publish", "topic", "bank/orders"))
    close_access([rig.shard])
    sessions_of(rig.shard)[stranger].principal = principal
    assert getattr(tenants.publish(stranger, "shop", 15_000), "code", 0)
    assert tenants.held() == []


def test_devices_are_charged_too(tenants: Tenants) -> None:
    tenants.limit(bytes_in=1_000)
    rig = tenants.rig
    rig.device(50, d.hello(42, 1, "shop/orders"), d.publish(0, b"x" * 1_500, 0))
    rig.settle()
    assert tenants.held() == [(50, True)]


def test_a_quota_that_ends_lets_all_go(tenants: Tenants) -> None:
    tenants.limit(bytes_in=1_000)
    one = tenants.session(10)
    tenants.publish(one, "shop", 10_000)
    tenants.rig.answer(1, q.RemoveQuota(SHOP))
    tenants.pass_ms(100)
    assert tenants.held() == [(one, True), (one, False)]
    tenants.publish(one, "shop", 10_000)
    assert tenants.held() == []


def test_what_is_used_is_shown(tenants: Tenants) -> None:
    tenants.limit(bytes_in=100_000, connections=9, storage_bytes=1 << 30, clusters=4)
    one = tenants.session(10)
    for _ in range(40):
        tenants.publish(one, "shop", 2_000)
        tenants.pass_ms(50)
    used = dict(tenants.use().used)
    assert 35_000 < used["bytes_in"] < 60_000
    assert (used["topics"], used["clusters"]) == (1, 0)
    assert used["storage_bytes"] > 70_000


def test_who_takes_notices_is_told_until_it_is_read_from_again(tenants: Tenants) -> None:
    tenants.limit(bytes_in=1_000)
    old, new = tenants.session(10), tenants.session(11)
    tenants.rig.answer(new, m.Hello("test", notices=True))
    said: dict[int, list[int]] = {old: [], new: []}
    do = tenants.rig.do

    def listen(effects: list[Any]) -> None:
        for one in effects:
            if isinstance(one, Send) and b"".join(one.buffers)[2] == q.Throttled.opcode:
                (frame,) = ClientStream().receive(b"".join(one.buffers))
                assert is_notice(frame)
                said[one.session].append(decode_notice(frame).throttle_ms)
        do([one for one in effects if not isinstance(one, Send)
            or b"".join(one.buffers)[2] != q.Throttled.opcode])  # fmt: skip

    tenants.rig.do = listen
    tenants.ask(new, "shop", 6_000)
    tenants.ask(old, "shop", 3_000)
    tenants.pass_ms(4_000)
    assert said[old] == []
    assert 4 <= len(said[new]) <= 6
    assert said[new][0] > 5_000
    assert said[new] == sorted(said[new], reverse=True)


# -- counts and storage ---------------------------------------------------------------------


def test_connections_are_refused_at_hello(tenants: Tenants) -> None:
    tenants.limit("anonymous", connections=2)
    tenants.pass_ms(1_000)  # who was there before is counted
    tenants.rig.connect(10)
    rig = tenants.rig
    rig.connect(11, hello=False)
    refused = rig.answer(11, m.Hello("test"))
    assert (refused.code, refused.detail) == (QuotaExceeded.code, 2)
    assert any(isinstance(one, Hangup) and one.session == 11 for one in rig.others)
    # To say hello again is to be no other connection; who goes makes room.
    assert isinstance(rig.answer(10, m.Hello("test")), m.Welcome)
    rig.handle(Closed(10))
    tenants.pass_ms(1_000)
    rig.connect(12)


def test_connections_of_devices_are_refused_by_a_code(tenants: Tenants) -> None:
    tenants.limit(connections=1)
    rig = tenants.rig
    rig.device(50, d.hello(42, 1, "shop/orders"))
    rig.device(51, d.hello(43, 1, "shop/orders"))
    rig.device(52, d.hello(43, 1, "bank/orders"))
    rig.settle()
    codes = [rig.device_replies[session][0].code for session in (50, 51, 52)]
    assert codes == [0, QuotaExceeded.code, 0]


def test_publishes_are_refused_once_a_namespace_stores_too_much(tenants: Tenants) -> None:
    tenants.limit(storage_bytes=10_000)
    one = tenants.session(10)
    assert isinstance(tenants.publish(one, "shop", 12_000), m.Confirm)
    tenants.pass_ms(1_000)
    refused = tenants.publish(one, "shop", 1)
    assert (refused.code, refused.detail) == (QuotaExceeded.code, 10_000)
    assert "storage_bytes" in refused.message
    assert isinstance(tenants.publish(one, "bank", 12_000), m.Confirm)
    rig = tenants.rig
    rig.device(50, d.hello(42, 1, "shop/orders"), d.publish(0, b"open", 0))
    rig.settle()
    assert [reply.code for reply in rig.device_replies[50]] == [0, QuotaExceeded.code]
    tenants.limit(storage_bytes=20_000)
    tenants.pass_ms(1_000)
    assert isinstance(tenants.publish(one, "shop", 1), m.Confirm)


def test_what_was_taken_is_confirmed_again_though_its_namespace_is_full(tenants: Tenants) -> None:
    one, rig = tenants.session(10), tenants.rig
    batch = rig.batch(tenants.topics["shop"], tenants.grants[one], 0, b"x" * 8_000)
    first = rig.answer(one, batch)
    said = d.hello(42, 1, "shop/orders"), d.publish(0, b"open", 0)
    rig.device(50, *said)
    rig.settle()
    tenants.limit(storage_bytes=1_000)
    tenants.pass_ms(1_000)
    again = rig.answer(one, batch)
    assert (again.offset, again.stamp, again.duplicate) == (first.offset, first.stamp, True)
    rig.device(51, *said, d.publish(1, b"shut", 1))
    rig.settle()
    codes = [reply.code for reply in rig.device_replies[51]]
    assert codes == [0, 0, QuotaExceeded.code]


def test_clusters_are_refused_where_they_would_begin(tenants: Tenants) -> None:
    tenants.limit(clusters=1)
    rig, address = tenants.rig, tenants.topics["shop"].addresses[0]
    one = tenants.session(10)
    tenants.publish(one, "shop", 100)
    pull = m.Pull(address, "first", 10, 1 << 16, 0, 30_000)
    assert isinstance(rig.answer(one, pull), m.Granted)
    tenants.pass_ms(1_000)
    refused = rig.answer(one, m.Pull(address, "second", 10, 1 << 16, 0, 30_000))
    assert (refused.code, refused.detail) == (QuotaExceeded.code, 1)
    assert isinstance(rig.answer(one, a.DescribePartition(address)), a.PartitionInfo)
    assert getattr(rig.answer(one, pull), "code", 0) != QuotaExceeded.code


def test_a_peer_that_overdraws_two_quotas_waits_for_both(tenants: Tenants) -> None:
    tenants.limit(bytes_in=1_000)
    tenants.limit("namespace:bank", bytes_in=1_000)
    one = tenants.session(10)
    # As by one read: what came with the first is taken, too.
    tenants.publish(one, "shop", 8_000)
    tenants.publish(one, "bank", 8_000)
    assert tenants.held() == [(one, True)]
    tenants.pass_ms(HELD_MS_MAX + 1_000)
    assert tenants.held() == [(one, False)]
    assert tenants.use("namespace:bank").throttled_ms > 0


# -- a rate that others have overdrawn -----------------------------------------------------------


def stored(tenants: Tenants) -> int:
    """Return how many messages the shop's partition has; nobody is charged for the question."""
    address = tenants.topics["shop"].addresses[0]
    meter = meter_of(tenants.rig.shard)
    meter.is_on, was = False, meter.is_on
    info = tenants.rig.answer(1, a.DescribePartition(address))
    meter.is_on = was
    return int(info.end)


def test_what_would_draw_on_an_overdrawn_rate_waits(tenants: Tenants) -> None:
    """Counterexample: each connection brought one write more into a namespace that had nothing."""
    tenants.limit(bytes_in=10_000)
    sessions = [tenants.session(session) for session in range(10, 30)]
    account = meter_of(tenants.rig.shard).accounts[SHOP]
    lowest, answered = 0.0, dict.fromkeys(sessions, 0)
    for session in sessions:
        tenants.ask(session, "shop", 4_000)
    order: list[int] = []
    for _ in range(400):
        lowest = min(lowest, account.buckets[0].level)
        tenants.pass_ms(50)
        for session in sessions:
            if tenants.confirmed(session):
                answered[session] += 1
                order.append(session)
    assert lowest > -4_200, "one frame beyond, however many peers there are"
    assert set(answered.values()) == {1}, "each is served, once"
    assert order == sessions, "in the order in which they came"
    assert meter_of(tenants.rig.shard).held == 0


def test_one_read_overdraws_by_one_request_only(tenants: Tenants) -> None:
    """What came in one read for a namespace that others have overdrawn waits for that one."""
    tenants.limit(bytes_in=10_000)
    one, other = tenants.session(10), tenants.session(11)
    tenants.publish(one, "shop", 8_000)
    assert tenants.held() == [(one, True)]
    tenants.ask(other, "bank", 100)
    assert tenants.confirmed(other) == 1
    for _ in range(3):
        tenants.ask(other, "shop", 3_000)
    tenants.ask(other, "bank", 100)
    assert tenants.confirmed(other) == 0
    assert tenants.held() == [(other, True)]
    bucket = meter_of(tenants.rig.shard).accounts[SHOP].buckets[0]
    served, steps = 0, list[int]()
    for _ in range(60):
        before = bucket.level
        tenants.pass_ms(50)
        assert bucket.level >= before or bucket.level > -3_200, "nothing is taken of nothing"
        if now := tenants.confirmed(other):
            served += now
            steps.append(now)
    assert served == 4, "nothing is lost, and the order stays"
    assert steps == [1, 1, 2], "what is behind the last one goes to the other namespace"


def test_requests_are_let_go_one_by_one(tenants: Tenants) -> None:
    """Counterexample: all that waited for a rate of requests were let go by the same unit of it."""
    tenants.limit(requests=10)
    sessions = [tenants.session(session) for session in range(10, 22)]
    bucket = meter_of(tenants.rig.shard).accounts[SHOP].buckets[2]
    for session in sessions:
        tenants.ask(session, "shop", 10)
    for _ in range(30):
        tenants.pass_ms(50)
        assert bucket.level > -2.1
    assert sum(map(tenants.confirmed, sessions)) == len(sessions)
    let_go = [session for session, hold in tenants.held() if not hold]
    most = max(map(let_go.count, sessions))
    assert most <= 2, "nobody is let go to wait again at once, but for what it used then"


def test_who_may_not_publish_there_waits_for_nobody(make_rig: Callable[..., Any]) -> None:
    """Else it would hear how busy a namespace is that is none of its own."""
    tenants = Tenants(make_rig())
    tenants.limit(bytes_in=1_000)
    one, stranger = tenants.session(10), tenants.session(11)
    tenants.publish(one, "shop", 8_000)
    rig, access = tenants.rig, catalog_of(tenants.rig.shard).access
    principal = give(access, "bank/eve", rule("publish", "topic", "bank/orders"))
    close_access([rig.shard])
    sessions_of(rig.shard)[stranger].principal = principal
    at = tenants.topics["shop"].addresses[0]
    known, none = rig.answer(stranger, m.Fetch(at, 0, 1, 0)), m.Address(0, 0, 1 << 30, 0)
    unknown = rig.answer(stranger, m.Fetch(none, 0, 1, 0))
    assert (known.code, known.message) == (unknown.code, unknown.message)
    assert tenants.held() == [(one, True)]


def test_a_hub_waits_for_what_others_have_overdrawn(tenants: Tenants) -> None:
    tenants.limit(bytes_in=10_000)
    rig, one = tenants.rig, tenants.session(10)
    rig.device(50, d.hello(42, 1, "shop/orders"))
    tenants.publish(one, "shop", 8_000)
    before = stored(tenants)
    rig.device(50, d.publish(0, b"x" * 100, 0))
    assert tenants.held() == [(one, True), (50, True)]
    assert stored(tenants) == before
    tenants.pass_ms(1_500)
    assert stored(tenants) == before + 1


def test_a_peer_that_is_gone_leaves_nothing_that_waits(tenants: Tenants) -> None:
    tenants.limit(bytes_in=10_000)
    one, other = tenants.session(10), tenants.session(11)
    tenants.publish(one, "shop", 8_000)
    tenants.ask(other, "shop", 3_000)
    used = tenants.rig.shard.budget.used
    assert used > 3_000
    tenants.rig.handle(Closed(other))
    assert tenants.rig.shard.budget.used < used - 2_900
    before = stored(tenants)
    tenants.pass_ms(2_000)
    assert stored(tenants) == before
