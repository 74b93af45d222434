"""What ends when something is taken away: connections, long polls, grants, cursors, devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from rigs.access import VERIFIER, be, give, keep_rules, rule, set_mode
from rigs.shards import catalog_of, sessions_of, unanswered
from weir.access.credentials import ScramVerifier
from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.metadata.security import users
from weir.broker.metadata.security.access import Access
from weir.broker.metadata.security.rules import Rule
from weir.errors import AccessRevoked, BadName, BadRequest, LevelTooLow, Unauthorized, UnknownTopic
from weir.model.topic import Mode
from weir.protocol import device
from weir.protocol.client import access as w
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m

T, U = "default/t", "default/u"


class Closed:
    """A closed set with an administrator, topics t and u, and users with sessions of their own."""

    def __init__(self, rig: Any, mode: str = "closed") -> None:
        self.rig = rig
        rig.connect(1)
        self.t = rig.answer(1, m.CreateTopic("t")).addresses[0]
        self.u = rig.answer(1, m.CreateTopic("u")).addresses[0]
        self.access = catalog_of(rig.shard).access
        if mode == "closed":
            rig.handle(ev.Closed(1))
        set_mode(self.access, mode)
        self.enter(2, "default/root", self.access.user("default/root").principal)

    def enter(self, session: int, user: str, principal: str = "") -> None:
        self.rig.connect(session, hello=False)
        be(self.rig.shard, session, principal or self.access.user(user).principal)
        assert isinstance(self.rig.answer(session, m.Hello("x")), m.Welcome)

    def user(self, session: int, name: str, *rules: Rule) -> None:
        give(self.access, name, *rules)
        self.enter(session, name)

    def change(self, request: m.Request) -> Any:
        return self.rig.answer(2, request)

    def revoke(self, user: str) -> Any:
        return self.change(w.ChangeUser("revoke", user))

    @property
    def ended(self) -> list[int]:
        return [one.session for one in self.rig.others if isinstance(one, ef.Hangup)]

    def told(self, session: int, number: int) -> Any:
        return dict(self.rig.replies[session]).get(number)


READ, CONSUME = rule("read", "topic", T), rule("consume", "topic", T)


def test_what_a_revoked_user_waits_for_is_refused_and_its_connections_end(rig: Any) -> None:
    closed = Closed(rig)
    closed.user(5, "default/ann", READ, CONSUME)
    closed.enter(6, "default/ann")
    closed.user(7, "default/bob", READ)
    fetch = rig.ask(5, m.Fetch(closed.t, 0, 1, wait_ms=5_000))
    pull = rig.ask(6, m.Pull(closed.t, "c", 1, 1, 5_000))
    others = rig.ask(7, m.Fetch(closed.t, 0, 1, wait_ms=5_000))
    changed = closed.revoke("ann")
    assert changed == w.AccessChanged(closed.access.version, [])
    assert sorted(closed.ended) == [5, 6]
    assert closed.told(5, fetch).code == closed.told(6, pull).code == AccessRevoked.code
    assert closed.told(7, others) is None, "others wait on"
    assert not {5, 6} & {*sessions_of(rig.shard)}
    assert not {5, 6} & {*unanswered(rig.shard)}
    before = {session: [*rig.replies[session]] for session in (5, 6)}
    rig.handle(ev.Received(5, []))
    rig.ask(5, m.Fetch(closed.t, 0, 1))
    rig.ask(6, m.Ping())
    rig.tick(6_000)
    rig.settle()
    for session in (5, 6):
        assert rig.replies[session] == before[session], "nothing is served any more"
        rig.handle(ev.Closed(session))
    assert dict(rig.replies[7])[others].batches == ()


def test_what_is_lost_with_one_role_is_refused_and_the_rest_is_only_cut(rig: Any) -> None:
    """A client that may go on with the rest connects again, and asks again."""
    closed = Closed(rig)
    give(closed.access, "default/readers", READ)
    closed.user(5, "default/ann", rule("read", "topic", U))
    closed.change(w.ChangeUser("roles", "ann", None, ("default.readers",)))
    lost = rig.ask(5, m.Fetch(closed.t, 0, 1, wait_ms=5_000))
    kept = rig.ask(5, m.Fetch(closed.u, 0, 1, wait_ms=5_000))
    closed.change(w.ChangeUser("roles", "ann", None, (), ("default.readers",)))
    assert closed.ended == [5]
    assert closed.told(5, lost).code == AccessRevoked.code
    assert closed.told(5, kept) is None
    closed.enter(8, "default/ann")
    assert rig.answer(8, m.Fetch(closed.u, 0, 1)).batches == ()
    assert rig.answer(8, m.Fetch(closed.t, 0, 1)).code == UnknownTopic.code


def test_who_did_not_use_what_is_lost_goes_on(rig: Any) -> None:
    closed = Closed(rig)
    closed.user(5, "default/ann", READ, rule("read", "topic", U))
    assert rig.answer(5, m.Fetch(closed.u, 0, 1)).batches == ()
    row = w.RuleRow(("read",), "topic", "t")
    closed.change(w.ChangeRole("default.ann", (), (row,)))
    assert closed.ended == []
    assert rig.answer(5, m.Fetch(closed.u, 0, 1)).batches == ()
    assert rig.answer(5, m.Fetch(closed.t, 0, 1)).code == UnknownTopic.code


def test_a_decision_is_kept_for_one_version_alone(rig: Any) -> None:
    """What was allowed a moment ago is not allowed because it was."""
    closed = Closed(rig)
    closed.user(5, "default/ann", READ, rule("consume", "cluster", f"{T}:c"))
    assert rig.answer(5, m.Fetch(closed.t, 0, 1)).batches == ()
    # As an entry does it, without the look at live sessions that comes behind.
    keep_rules(rig.shard, "default.ann", rule("consume", "cluster", f"{T}:c"))
    assert rig.answer(5, m.Fetch(closed.t, 0, 1)).batches == (), "nothing was said to be new"
    closed.access.version += 1
    assert rig.answer(5, m.Fetch(closed.t, 0, 1)).code == Unauthorized.code


def test_a_decision_is_of_one_cluster_and_of_one_kind_of_request(rig: Any) -> None:
    closed = Closed(rig)
    closed.user(5, "default/ann", rule("consume", "cluster", f"{T}:c"), rule("read", "topic", T))
    assert rig.answer(5, m.Withdraw(closed.t, "c")) == m.Withdrawn()
    assert rig.answer(5, m.Withdraw(closed.t, "d")).code == Unauthorized.code
    assert rig.answer(5, m.Positions(closed.t)).end == 0
    assert rig.answer(5, a.SeekCluster(closed.t, "c", 0)).code == Unauthorized.code
    assert rig.answer(5, m.Produce(closed.t, 0, memoryview(b""))).code == Unauthorized.code
    assert rig.answer(5, m.Positions(closed.u)).code == UnknownTopic.code


def test_grants_go_back_at_once(rig: Any, make_publisher: Callable[..., Any]) -> None:
    closed = Closed(rig, "open")
    publisher = make_publisher(rig, rig.answer(1, m.DescribeTopic("t")))
    publisher.ask(b"a")
    rig.handle(ev.Closed(1))
    set_mode(closed.access, "closed")
    closed.user(5, "default/ann", CONSUME)
    closed.user(6, "default/bob", CONSUME)
    rig.answer(5, m.OpenCluster(closed.t, "c", Mode.SHARED))
    held = rig.answer(5, m.Pull(closed.t, "c", 10, 1 << 20, lease_ms=60_000))
    assert held.next_offset == 1
    waits = rig.ask(6, m.Pull(closed.t, "c", 10, 1 << 20, 5_000, lease_ms=60_000))
    rig.settle()
    assert closed.told(6, waits) is None
    closed.revoke("ann")
    rig.settle()
    assert closed.told(6, waits).next_offset == 1, "nobody waits for a lease of who is gone"


def test_a_token_of_another_user_moves_no_grant(
    rig: Any, make_publisher: Callable[..., Any]
) -> None:
    closed = Closed(rig, "open")
    make_publisher(rig, rig.answer(1, m.DescribeTopic("t"))).ask(b"a")
    rig.handle(ev.Closed(1))
    set_mode(closed.access, "closed")
    closed.user(5, "default/ann", CONSUME)
    closed.user(6, "default/bob", CONSUME)
    closed.enter(7, "default/ann")
    rig.answer(5, m.OpenCluster(closed.t, "c", Mode.SHARED))
    pull = m.Pull(
        closed.t, "c", 10, 1 << 20, lease_ms=60_000, begun=[], offsets_only=True, token=bytes(16)
    )
    held = rig.answer(5, pull)
    rig.handle(ev.Closed(5))
    move = m.MoveGrants(closed.t, "c", bytes(16), 1, [held.fence])
    assert rig.answer(6, move) == m.GrantsMoved()
    ((asked, _),) = rig.answer(7, move).fences
    assert asked == held.fence


def test_another_password_ends_what_came_by_the_one_before(rig: Any) -> None:
    closed = Closed(rig)
    closed.user(5, "default/ann", READ)
    wait = rig.ask(5, m.Fetch(closed.t, 0, 1, wait_ms=5_000))
    closed.change(w.ChangeUser("password", "ann", VERIFIER))
    assert closed.ended == [5]
    assert closed.told(5, wait).code == AccessRevoked.code
    closed.enter(6, "default/ann")
    closed.change(w.ChangeUser("password", "root", VERIFIER))
    assert closed.ended == [5, 2], "whose own it is, too"


def test_a_set_that_is_closed_ends_who_is_nobody(rig: Any) -> None:
    closed = Closed(rig, "open")
    closed.user(5, "default/ann", READ)
    wait = rig.ask(1, m.Fetch(closed.t, 0, 1, wait_ms=5_000))
    stranger = rig.answer(1, w.SetAccessMode("closed"))
    assert (stranger.code, closed.access.mode) == (BadRequest.code, "open")
    rig.connect(9, hello=False)
    closed.change(w.SetAccessMode("watch"))
    assert closed.ended == []
    wait = rig.ask(1, m.Fetch(closed.t, 0, 1, wait_ms=5_000))
    closed.change(w.SetAccessMode("closed"))
    assert closed.ended == [1], "who has not said anything yet may log in"
    assert closed.told(1, wait).code == AccessRevoked.code
    closed.change(w.SetAccessMode("open"))
    rig.connect(11)


def test_what_a_watched_session_used_must_be_allowed_once_it_is_closed(rig: Any) -> None:
    closed = Closed(rig, "watch")
    closed.user(5, "default/ann", READ)
    closed.user(6, "default/bob", READ)
    for session, address in ((5, closed.t), (6, closed.t), (6, closed.u)):
        assert rig.answer(session, m.Fetch(address, 0, 1)).batches == ()
    closed.change(w.SetAccessMode("closed"))
    assert [session for session in closed.ended if session != 1] == [6]


def test_what_would_be_refused_is_counted_by_name(rig: Any) -> None:
    closed = Closed(rig, "watch")
    closed.user(5, "default/ann", READ)
    for _ in range(3):
        assert rig.answer(5, m.Fetch(closed.t, 0, 1)).batches == ()
        rig.answer(5, m.Fetch(closed.u, 0, 1))
    found = rig.answer(2, w.ListRefusals())
    ann = closed.access.user("default/ann").principal
    rows = [row for row in found.rows if row.principal == ann]
    assert rows == [w.RefusalRow(ann, "read", "topic", U, 1)], "one look a version, not a message"
    rig.answer(5, m.DescribeTopic("nothing"))
    assert rig.answer(2, w.ListRefusals()) == found, "what is not there is nobody's to refuse"


def test_what_waits_since_a_set_was_open_ends_when_it_is_closed(rig: Any) -> None:
    closed = Closed(rig, "open")
    closed.user(5, "default/ann", READ)
    closed.user(6, "default/bob", rule("read", "topic", "default/other"))
    waits = {
        session: rig.ask(session, m.Fetch(closed.t, 0, 1, wait_ms=5_000)) for session in (5, 6)
    }
    closed.change(w.SetAccessMode("closed"))
    assert closed.told(5, waits[5]) is None, "it may go on to wait"
    assert closed.told(6, waits[6]).code == AccessRevoked.code
    assert 6 in closed.ended
    assert 5 not in closed.ended


def test_what_is_used_in_an_open_set_is_found_once_for_all_sessions_of_a_principal(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = Closed(rig, "open")
    closed.user(5, "default/ann", READ)
    closed.enter(6, "default/ann")
    looks = []
    authorize = Access.authorize

    def counted(*given: Any) -> Any:
        looks.append(given)
        return authorize(*given)

    monkeypatch.setattr(Access, "authorize", counted)
    for session in (5, 6, 5, 6):
        rig.ask(session, m.Fetch(closed.t, 0, 1, wait_ms=5_000))
    assert len(looks) == 1
    rig.ask(5, m.Fetch(closed.u, 0, 1, wait_ms=5_000))
    assert len(looks) > 1, "another topic is another question"


def test_what_is_used_in_an_open_set_hangs_on_user_cluster_and_version(rig: Any) -> None:
    """Who may go on when the set is closed is seen by what it used; each uses what it may."""
    of_cluster = rule("consume", "cluster", f"{T}:c")
    closed = Closed(rig, "open")
    closed.user(5, "default/ann", CONSUME)
    closed.user(6, "default/bob", of_cluster)
    closed.user(8, "default/dan", of_cluster)
    for session, cluster in ((5, "c"), (6, "c"), (8, "c"), (8, "d")):
        rig.ask(session, m.Pull(closed.t, cluster, 1, 1, 5_000))
    row = w.RuleRow(("consume",), "topic", "t")
    added = w.RuleRow(("consume",), "cluster", "t:c")
    closed.change(w.ChangeRole("default.ann", (added,), (row,)))
    closed.enter(9, "default/ann")
    rig.ask(9, m.Pull(closed.t, "c", 1, 1, 5_000))
    closed.change(w.SetAccessMode("closed"))
    assert sorted(one for one in closed.ended if one != 1) == [5, 8]


def test_devices_that_are_nobody_go_when_a_set_is_closed(rig: Any) -> None:
    closed = Closed(rig, "open")
    rig.device(30, device.hello(7, 1, "t", sn=1))
    rig.settle()
    assert sessions_of(rig.shard)[30].device is not None
    closed.change(w.SetAccessMode("closed"))
    assert 30 in closed.ended
    assert 30 not in sessions_of(rig.shard)


def test_a_deleted_topic_takes_what_was_allowed_by_name(rig: Any) -> None:
    closed = Closed(rig)
    closed.user(5, "default/ann", READ)
    closed.user(6, "default/bob", rule("read", "topic", "default/", True))
    for session in (5, 6):
        assert rig.answer(session, m.Fetch(closed.t, 0, 1)).batches == ()
    closed.change(a.DeleteTopic("t"))
    again = closed.change(m.CreateTopic("t")).addresses[0]
    assert 5 in closed.ended
    assert 6 not in closed.ended
    assert rig.answer(6, m.Fetch(again, 0, 1)).batches == ()
    closed.enter(8, "default/ann")
    assert rig.answer(8, m.Fetch(again, 0, 1)).code == UnknownTopic.code


def test_a_set_of_an_earlier_level_takes_no_users(rig: Any) -> None:
    rig.connect(1)
    nodes = catalog_of(rig.shard).nodes
    nodes.level = 2
    for request in (
        w.ChangeUser("create", "ann", VERIFIER),
        w.ChangeUser("revoke", "ann"),
        w.ChangeRole("shop"),
        w.ChangeRole("shop", delete=True),
        w.SetAccessMode("watch"),
    ):
        assert rig.answer(1, request).code == LevelTooLow.code
    assert not catalog_of(rig.shard).access
    assert rig.answer(1, w.DescribeAccess()) == w.AccessInfo("open", 0, [], [])


def test_asking_again_does_what_asking_once_does(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(secret_bytes=bytes)
    rig.connect(1)
    create = w.ChangeUser("create", "ann", VERIFIER, ("admin",))
    first = rig.answer(1, create)
    assert rig.answer(1, create) == first
    assert "is there already" in rig.answer(1, w.ChangeUser("create", "ann", VERIFIER)).message
    gone = rig.answer(1, w.ChangeUser("revoke", "ann"))
    assert gone.version == first.version + 1
    assert rig.answer(1, w.ChangeUser("revoke", "ann")) == gone
    deleted = rig.answer(1, w.ChangeRole("shop", delete=True))
    assert deleted.version == gone.version
    assert "no user is without one" in rig.answer(1, w.ChangeUser("create", "bob")).message


@pytest.mark.parametrize(
    "verifier",
    [
        replace(VERIFIER, iterations=4_096),
        replace(VERIFIER, iterations=1_200_000),
        replace(VERIFIER, iterations=0),
        replace(VERIFIER, salt=bytes(17)),
    ],
)
def test_no_challenge_tells_by_its_form_that_a_user_is_there(
    make_rig: Callable[..., Any], verifier: ScramVerifier
) -> None:
    """Who is not there has the one count of iterations, and 16 bytes of salt."""
    rig = make_rig(secret_bytes=bytes)
    rig.connect(1)
    for action in ("create", "password"):
        refused = rig.answer(1, w.ChangeUser(action, "ann", verifier))
        assert refused.code == BadRequest.code, refused
    assert rig.answer(1, w.DescribeAccess()).users == []


def test_a_long_list_of_users_comes_in_pages(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.connect(1)
    access = catalog_of(rig.shard).access
    names = [f"default/u{number}" for number in range(7)]
    for name in names:
        give(access, name, READ)
    monkeypatch.setattr(users, "_PAGE_BYTES", 250)
    found_users: list[str] = []
    found_roles: list[str] = []
    pages = 0
    while True:
        after = found_users[-1] if found_users else "", found_roles[-1] if found_roles else ""
        page = rig.answer(1, w.DescribeAccess(*after))
        found_users += [row.user for row in page.users]
        found_roles += [row.role for row in page.roles]
        pages += 1
        if not page.more:
            break
    assert found_users == names
    assert found_roles == [name.replace("/", ".") for name in names]
    assert pages > 3


def test_a_name_that_no_cluster_has_is_kept_with_no_decision(rig: Any) -> None:
    closed = Closed(rig)
    closed.user(5, "default/ann", READ, CONSUME)
    for length in (200, 70_000):
        refused = rig.answer(5, m.Ack(closed.t, "x" * length, [(1, 0, 1)]))
        assert refused.code == BadName.code, refused
        assert "cluster's name" in refused.message
    assert not any("x" in asked.name for asked in sessions_of(rig.shard)[5].used)
