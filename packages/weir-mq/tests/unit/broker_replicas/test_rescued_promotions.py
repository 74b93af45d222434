"""A closed set whose registry has no leader any more: no user can log in, and a file in the data
folder of a node lets a session in, to promote the set.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from rigs.access import set_mode, verifier_of
from rigs.shards import catalog_of, sessions_of, trunks_of
from weir.access.credentials import derive_key
from weir.access.scram import MECHANISM, ScramClient, ScramProof, encode_nonce
from weir.access.wrapping import KEY_BYTES, NONCE_BYTES, KeyRing
from weir.broker.api import events as ev
from weir.broker.metadata.security.access import RESCUER
from weir.broker.metadata.security.vault import FALSE_SALTS
from weir.broker.records.security import UserCreated
from weir.errors import BadRequest, NotAuthenticated, Unauthorized, Unavailable
from weir.model.ids import REGISTRY_GROUP, place_of
from weir.protocol.client import messages as m
from weir.protocol.client.access import Login, LoginStep
from weir.protocol.client.nodes import ListNodes
from weir.protocol.client.topology import CopyList, DescribeCopies, ForceRegistry

SECRET, PASSWORD = "drawn by the command", "a user's own"
STALE_MS, CUTOFF_MS = 3_000, 6_000


class Lost:
    """A closed set of three nodes, of which the one that led the registry is gone, and another one
    is not reached by the last: `node` is left alone, with news that become old.
    """

    def __init__(self, make_trio: Callable[..., Any]) -> None:
        secret_bytes = random.Random(7).randbytes
        self.trio = make_trio(stale_ms=STALE_MS, cutoff_ms=CUTOFF_MS, secret_bytes=secret_bytes)
        self.leader = self.trio.leader()
        self.node, self.other = (one for one in self.trio.live() if one is not self.leader)
        for one in self.trio.live():
            access = catalog_of(one.shard).access
            set_mode(access, "closed")
            access.apply(UserCreated("default/ann", verifier_of(PASSWORD), ("admin",)))
        self.trio.run(1_000)

    def lose(self) -> None:
        """Let the node that leads the registry be gone, and no other one be elected."""
        self.leader.kill()
        self.trio.isolate(self.other.id)
        self.trio.until(lambda: not trunks_of(self.node.shard).in_sync)

    def open(self, session: int) -> int:
        self.node.replies[session] = []
        self.node.handle(ev.Opened(session))
        self.node.handle(ev.Secured(session))
        return session

    def ask(self, request: m.Request, session: int) -> Any:
        asked = self.node.ask(request, session)
        return self.trio.until(lambda: self.node.reply_to(asked, session))

    def log_in(self, session: int, user: str = RESCUER, password: str = SECRET) -> Any:
        """Return what the first step is refused with, or what the second is answered."""
        self.open(session)
        client = ScramClient(user, encode_nonce(bytes(18)))
        step = self.ask(Login(MECHANISM, client.first), session)
        if not isinstance(step, LoginStep):
            return step
        challenge = client.challenged(step.message)
        key = derive_key(password, challenge.salt, challenge.iterations)
        return self.ask(Login(MECHANISM, ScramProof(challenge, key).final), session)

    def is_there(self, session: int) -> bool:
        return session in sessions_of(self.node.shard)

    def force(self) -> ForceRegistry:
        voter = self.node.group(REGISTRY_GROUP).voter
        return ForceRegistry(0, 0, 1, [voter], forced=True)


@pytest.fixture
def lost(make_trio: Callable[..., Any]) -> Lost:
    return Lost(make_trio)


def test_without_a_leader_only_who_writes_into_the_folder_is_let_in(lost: Lost) -> None:
    assert lost.log_in(10, "ann", PASSWORD).user == "default/ann"
    lost.lose()
    lost.node.shard.offer_rescue(verifier_of(SECRET))
    assert lost.log_in(11, "ann", PASSWORD).code == Unavailable.code
    for user in ("nobody", "rescue", ":rescue2", "default/:rescue"):
        first = ScramClient(user, encode_nonce(bytes(18))).first
        assert lost.ask(Login(MECHANISM, first), lost.open(12)).code == Unavailable.code
    assert lost.log_in(13, RESCUER, PASSWORD).code == NotAuthenticated.code
    done = lost.log_in(14)
    assert (done.done, done.user) == (True, RESCUER)
    assert isinstance(lost.ask(m.Hello("x"), 14), m.Welcome)
    found = lost.ask(DescribeCopies(), 14)
    assert isinstance(found, CopyList)
    assert found.rows[0].group == REGISTRY_GROUP
    assert lost.ask(ListNodes(), 14).code == Unauthorized.code
    assert lost.ask(m.OpenProducer(), 14).code == Unauthorized.code
    # It may ask for it; here there are no two sets.
    assert lost.ask(lost.force(), 14).code == BadRequest.code


def test_a_wrong_guess_is_refused_alike_with_a_file_and_without(lost: Lost) -> None:
    lost.lose()
    without = lost.log_in(11)
    lost.node.shard.offer_rescue(verifier_of("another"))
    assert (without.code, without.message) == (NotAuthenticated.code, lost.log_in(12).message)


def test_a_login_does_not_go_on_as_another_user(lost: Lost) -> None:
    """The first step says who it is: the second one is looked at as that user's."""
    lost.open(11)
    client = ScramClient("ann", encode_nonce(bytes(18)))
    step = lost.ask(Login(MECHANISM, client.first), 11)
    challenge = client.challenged(step.message)
    lost.lose()
    key = derive_key(PASSWORD, challenge.salt, challenge.iterations)
    refused = lost.ask(Login(MECHANISM, ScramProof(challenge, key).final), 11)
    assert refused.code == Unavailable.code
    for message in (b"", b"n,,", b"y,,n=:rescue,r=x", b"n,a=ann,n=:rescue,r=abcdefgh"):
        assert lost.ask(Login(MECHANISM, message), lost.open(12)).code == Unavailable.code


def test_where_secrets_are_wrapped_nobody_is_let_in_without_the_key_file(lost: Lost) -> None:
    """A copy of the folder does not let anybody write into the node's own."""
    ring = KeyRing((b"k" * KEY_BYTES,))
    wrapped = ring.wrap(bytes(32), FALSE_SALTS, bytes(NONCE_BYTES))
    catalog_of(lost.node.shard).access.secret = wrapped
    lost.lose()
    lost.node.shard.offer_rescue(verifier_of(SECRET))
    assert lost.log_in(11).code == Unavailable.code


def test_it_goes_on_behind_the_cut_off_and_ends_with_the_file(lost: Lost) -> None:
    lost.log_in(10, "ann", PASSWORD)
    assert isinstance(lost.ask(m.Hello("x"), 10), m.Welcome)
    lost.lose()
    lost.node.shard.offer_rescue(verifier_of(SECRET))
    lost.log_in(11)
    assert isinstance(lost.ask(m.Hello("x"), 11), m.Welcome)
    lost.trio.run(2 * CUTOFF_MS)
    assert (lost.is_there(10), lost.is_there(11)) == (False, True)
    assert isinstance(lost.ask(DescribeCopies(), 11), CopyList)
    lost.node.shard.offer_rescue(None)
    lost.trio.run(100)
    assert not lost.is_there(11)


def test_a_node_that_was_left_behind_lets_nobody_in(lost: Lost) -> None:
    lost.lose()
    lost.node.shard.offer_rescue(verifier_of(SECRET))
    lost.log_in(11)
    assert isinstance(lost.ask(m.Hello("x"), 11), m.Welcome)
    lost.node.handle(ev.Outlived(lost.other.id, 1))
    lost.trio.run(100)
    assert not lost.is_there(11)
    lost.node.shard.offer_rescue(verifier_of(SECRET))
    assert lost.log_in(12).code == NotAuthenticated.code


def test_a_node_that_knows_less_of_the_users_takes_what_is_passed_on(lost: Lost) -> None:
    """The registry has no leader that could tell it more."""
    catalog_of(lost.node.shard).access.apply(UserCreated("default/eve", verifier_of(PASSWORD), ()))
    lost.leader.kill()
    lost.trio.until(lambda: not trunks_of(lost.node.shard).in_sync)
    lost.node.shard.offer_rescue(verifier_of(SECRET))
    lost.log_in(11)
    assert isinstance(lost.ask(m.Hello("x"), 11), m.Welcome)
    found = lost.ask(DescribeCopies(place_of(lost.other.id, 0)), 11)
    assert (type(found), found.node) == (CopyList, lost.other.id)


@pytest.mark.parametrize("was_closed", [True, False])
def test_a_node_without_news_goes_by_what_its_folder_says(
    make_trio: Callable[..., Any], was_closed: bool
) -> None:
    """Its copy of the registry may be older than the mode: by it, everybody may do everything."""
    lost = Lost(make_trio)
    lost.node.settings = {**lost.node.settings, "was_closed": was_closed}
    for one in lost.trio.live():
        one.kill()
    lost.node.boot()
    lost.trio.run(200)
    assert catalog_of(lost.node.shard).access.mode == "open", "what was applied by hand is gone"
    welcomed = lost.ask(m.Hello("x"), lost.open(11))
    assert isinstance(welcomed, m.Welcome) is not was_closed
    passed = 12
    lost.node.replies[passed] = []
    lost.node.handle(ev.Opened(passed, "anonymous", place_of(lost.other.id, 0)))
    for request in (DescribeCopies(), lost.force()):
        reply = lost.ask(request, passed)
        is_refused = isinstance(reply, m.Refusal) and reply.code == Unavailable.code
        assert is_refused is was_closed, (request, reply)
    # Without the key file of the set nobody is to be let in: here it is not known if it is needed.
    lost.node.shard.offer_rescue(verifier_of(SECRET))
    assert lost.log_in(13).code == Unavailable.code
