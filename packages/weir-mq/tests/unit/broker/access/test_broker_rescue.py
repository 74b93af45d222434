"""Who is let in by a file of the data folder may administer, and nothing else, and not for long."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from rigs.access import close_access, verifier_of
from rigs.shards import catalog_of, sessions_of
from weir.access.credentials import derive_key
from weir.access.scram import MECHANISM, ScramClient, ScramProof, encode_nonce
from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.metadata.security.access import RESCUER
from weir.errors import NotAuthenticated, Unauthorized, UnknownTopic
from weir.protocol.client import access as w
from weir.protocol.client import messages as m
from weir.protocol.client.access import Login, LoginStep
from weir.protocol.client.nodes import ListNodes

SECRET = "drawn by the command"


@pytest.fixture
def rig(make_rig: Callable[..., Any]) -> Any:
    rig = make_rig(secret_bytes=random.Random(7).randbytes)
    rig.connect()
    rig.topic(1, "t")
    close_access([rig.shard])
    return rig


def log_in(rig: Any, session: int, password: str = SECRET) -> Any:
    rig.replies[session] = []
    rig.handle(ev.Opened(session))
    rig.handle(ev.Secured(session))
    client = ScramClient(RESCUER, encode_nonce(bytes(18)))
    step = rig.answer(session, Login(MECHANISM, client.first))
    challenge = client.challenged(step.message)
    key = derive_key(password, challenge.salt, challenge.iterations)
    return rig.answer(session, Login(MECHANISM, ScramProof(challenge, key).final))


def test_nobody_is_rescued_without_a_file(rig: Any) -> None:
    assert log_in(rig, 5).code == NotAuthenticated.code
    rig.shard.offer_rescue(verifier_of(SECRET))
    rig.shard.offer_rescue(None)
    assert log_in(rig, 6).code == NotAuthenticated.code
    assert sessions_of(rig.shard)[6].principal == "anonymous"


def test_who_is_rescued_administers_and_does_nothing_else(rig: Any) -> None:
    rig.shard.offer_rescue(verifier_of(SECRET))
    assert log_in(rig, 5, "a guess").code == NotAuthenticated.code
    done = log_in(rig, 6)
    assert isinstance(done, LoginStep)
    assert (done.done, done.user) == (True, RESCUER)
    assert isinstance(rig.answer(6, m.Hello("x")), m.Welcome)
    for request, code in (
        (m.CreateTopic("u", 1), Unauthorized.code), (m.DescribeTopic("t"), UnknownTopic.code),
        (ListNodes(), Unauthorized.code), (m.OpenProducer(), Unauthorized.code),
    ):  # fmt: skip
        assert rig.answer(6, request).code == code, request
    made = rig.answer(6, w.ChangeUser("create", "ann", verifier_of("x"), ("admin",)))
    assert isinstance(made, w.AccessChanged)
    assert "default/ann" in {one.name for one in catalog_of(rig.shard).access.administrators()}


def test_it_ends_with_the_file(rig: Any) -> None:
    rig.shard.offer_rescue(verifier_of(SECRET))
    rig.tick()
    log_in(rig, 6)
    rig.answer(6, m.Hello("x"))
    rig.others.clear()
    rig.shard.offer_rescue(None)
    rig.tick()
    assert 6 in [one.session for one in rig.others if isinstance(one, ef.Hangup)]
