"""Logins by SCRAM at a shard: two steps, one attempt, and nothing that a stranger could learn."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

import pytest

from rigs.access import end_revoked, set_mode, verifier_of
from rigs.shards import catalog_of, sessions_of, slowed_logins, trunks_of
from weir.access.credentials import derive_key
from weir.access.failures import FREE_FAILURES
from weir.access.login_tickets import TICKET_SECONDS
from weir.access.scram import MECHANISM, ScramClient, ScramProof, encode_nonce
from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.metadata.security.access import Access
from weir.broker.records.security import AccessFounded, UserCreated, UserPasswordSet, UserRevoked
from weir.errors import BadRequest, NotAuthenticated, Overloaded, Unavailable
from weir.protocol.client import messages as m
from weir.protocol.client.access import Login, LoginStep
from weir.protocol.client.codec import ClientStream, decode_request, encode_request

PASSWORD = "hunter22"
ANN = "default/ann"


@pytest.fixture
def rig(make_rig: Callable[..., Any]) -> Any:
    rig = make_rig(secret_bytes=random.Random(7).randbytes)
    access = catalog_of(rig.shard).access
    access.apply(AccessFounded(bytes(range(32))))
    access.apply(UserCreated(ANN, verifier_of(PASSWORD)))
    return rig


def connect(rig: Any, session: int, is_private: bool = True, origin: str = "") -> int:
    rig.replies[session] = []
    rig.handle(ev.Opened(session))
    if is_private:
        rig.handle(ev.Secured(session, origin))
    return session


def begin(rig: Any, session: int, user: str = "ann", nonce: int = 1) -> tuple[ScramClient, Any]:
    client = ScramClient(user, encode_nonce(bytes([nonce]) * 18))
    return client, rig.answer(session, Login(MECHANISM, client.first))


def proven(client: ScramClient, step: LoginStep, password: str = PASSWORD) -> ScramProof:
    challenge = client.challenged(step.message)
    return ScramProof(challenge, derive_key(password, challenge.salt, challenge.iterations))


def hung_up(rig: Any) -> list[int]:
    return [one.session for one in rig.others if isinstance(one, ef.Hangup)]


def principal(rig: Any, session: int) -> str:
    return str(sessions_of(rig.shard)[session].principal)


@pytest.mark.parametrize("user", ["ann", "default/ann"])
def test_who_knows_the_password_is_let_in(rig: Any, user: str) -> None:
    connect(rig, 1)
    client, step = begin(rig, 1, user)
    assert not step.done
    proof = proven(client, step)
    assert principal(rig, 1) == "anonymous"
    last = rig.answer(1, Login(MECHANISM, proof.final))
    proof.check(last.message)
    assert (last.done, last.user) == (True, ANN)
    assert principal(rig, 1) == f"user:{ANN}#2"
    assert isinstance(rig.answer(1, m.Hello("x")), m.Welcome)
    assert hung_up(rig) == []


def test_a_producer_is_its_users(rig: Any) -> None:
    """Counterexample 17: a stranger locks nobody out who has an id of its own."""
    for session in (1, 2):
        connect(rig, session)
    client, step = begin(rig, 1)
    rig.answer(1, Login(MECHANISM, proven(client, step).final))
    for session in (1, 2):
        rig.answer(session, m.Hello("x"))
    grant = rig.answer(1, m.OpenProducer())
    assert "was not granted to anonymous" in rig.answer(2, m.OpenProducer(grant.producer)).message
    assert rig.answer(1, m.OpenProducer(grant.producer)).epoch == 1
    access: Access = catalog_of(rig.shard).access
    access.apply(UserRevoked(ANN))
    access.apply(UserCreated(ANN, verifier_of(PASSWORD)))
    connect(rig, 3)
    client, step = begin(rig, 3)
    rig.answer(3, Login(MECHANISM, proven(client, step).final))
    rig.answer(3, m.Hello("x"))
    refused = rig.answer(3, m.OpenProducer(grant.producer))
    assert "was not granted to user:default/ann#4" in refused.message, "a namesake has none of it"


def test_all_failures_read_alike(rig: Any) -> None:
    words = set()
    for session, (user, password) in enumerate(
        (("ann", "wrong"), ("bob", PASSWORD), ("a/b/c", PASSWORD), ("default/bob", "x")), 1
    ):
        connect(rig, session)
        client, step = begin(rig, session, user)
        refused = rig.answer(session, Login(MECHANISM, proven(client, step, password).final))
        words.add((refused.code, refused.message, refused.detail))
        assert hung_up(rig)[-1] == session
    ((code, _, _),) = words
    assert code == NotAuthenticated.code


def test_a_user_that_is_not_there_has_the_same_salt_each_time(rig: Any) -> None:
    salts = []
    for session in (1, 2):
        connect(rig, session)
        client, step = begin(rig, session, "bob", session)
        salts.append(client.challenged(step.message).salt)
    assert salts[0] == salts[1] != verifier_of(PASSWORD).salt
    connect(rig, 3)
    client, step = begin(rig, 3, "bo")
    assert client.challenged(step.message).salt != salts[0]


def test_there_is_one_attempt(rig: Any) -> None:
    connect(rig, 1)
    client, step = begin(rig, 1)
    wrong = proven(client, step, "wrong")
    assert rig.answer(1, Login(MECHANISM, wrong.final)).code == NotAuthenticated.code
    right = proven(client, step)
    assert rig.answer(1, Login(MECHANISM, right.final)).code == BadRequest.code
    assert principal(rig, 1) == "anonymous"


def test_a_proof_is_worth_nothing_elsewhere(rig: Any) -> None:
    connect(rig, 1)
    client, step = begin(rig, 1)
    proof = proven(client, step)
    connect(rig, 2)
    begin(rig, 2)
    assert rig.answer(2, Login(MECHANISM, proof.final)).code == NotAuthenticated.code
    assert rig.answer(1, Login(MECHANISM, proof.final)).done
    again = rig.answer(1, Login(MECHANISM, proof.final))
    assert again.code == BadRequest.code


def test_only_where_nobody_reads_along(rig: Any) -> None:
    connect(rig, 1, is_private=False)
    _, refused = begin(rig, 1)
    assert refused.code == NotAuthenticated.code
    assert "need TLS" in refused.message


def test_only_before_hello_and_only_once(rig: Any) -> None:
    connect(rig, 1)
    rig.answer(1, m.Hello("x"))
    assert "before hello" in begin(rig, 1)[1].message
    rig.handle(ev.Opened(2, f"user:{ANN}#2", 1))
    rig.handle(ev.Secured(2))
    rig.replies[2] = []
    assert "before hello" in begin(rig, 2)[1].message


@pytest.mark.parametrize(
    "message",
    [b"", b"n,,", b"n,,n=ann", b"p=tls-unique,,n=ann,r=" + b"a" * 24,
     b"n,,n=ann,r=" + b"\xff" * 24, b"x" * 2_000],
)  # fmt: skip
def test_what_is_no_message_is_refused(rig: Any, message: bytes) -> None:
    connect(rig, 1)
    assert rig.answer(1, Login(MECHANISM, message)).code == BadRequest.code
    client, step = begin(rig, 1)
    assert rig.answer(1, Login(MECHANISM, message)).code == BadRequest.code
    assert rig.answer(1, Login(MECHANISM, proven(client, step).final)).code == BadRequest.code


@pytest.mark.parametrize("mechanism", ["", "PLAIN", "SCRAM-SHA-1", "scram-sha-256"])
def test_there_is_one_mechanism(rig: Any, mechanism: str) -> None:
    connect(rig, 1)
    assert MECHANISM in rig.answer(1, Login(mechanism, b"n,,n=ann,r=" + b"a" * 24)).message


@pytest.mark.parametrize("record", [UserRevoked(ANN), UserPasswordSet(ANN, verifier_of("other"))])
def test_what_was_taken_between_the_steps_lets_nobody_in(rig: Any, record: Any) -> None:
    connect(rig, 1)
    client, step = begin(rig, 1)
    catalog_of(rig.shard).access.apply(record)
    refused = rig.answer(1, Login(MECHANISM, proven(client, step).final))
    assert refused.code == NotAuthenticated.code
    assert principal(rig, 1) == "anonymous"


def test_without_random_bytes_nobody_logs_in(make_rig: Callable[..., Any]) -> None:
    rig = make_rig()
    connect(rig, 1)
    assert begin(rig, 1)[1].code == Unavailable.code


def test_a_message_over_its_limit_is_not_even_read() -> None:
    frame = b"".join(encode_request(Login(MECHANISM, bytes(17_000)), 1))

    (one,) = ClientStream().receive(frame)
    with pytest.raises(BadRequest, match="length <= 16384"):
        decode_request(one)


def test_both_names_of_nobody_have_one_false_salt(rig: Any) -> None:
    """A user that is there has one salt by both of its names."""
    salts = set()
    for session, name in enumerate(("bob", "default/bob"), 1):
        connect(rig, session)
        client, step = begin(rig, session, name, session)
        salts.add(client.challenged(step.message).salt)
    assert len(salts) == 1


def test_who_is_not_welcomed_in_a_closed_set_is_hung_up(rig: Any) -> None:
    """Having said hello it would be no stranger any more, and could bring much."""
    set_mode(catalog_of(rig.shard).access, "closed")
    connect(rig, 1)
    refused = rig.answer(1, m.Hello("x"))
    assert refused.code == NotAuthenticated.code
    assert hung_up(rig) == [1]


def fail(rig: Any, session: int, user: str) -> None:
    connect(rig, session)
    client, step = begin(rig, session, user)
    assert rig.answer(session, Login(MECHANISM, proven(client, step, "wrong").final)).code


@pytest.mark.parametrize("user", ["ann", "nobody"])
def test_failures_slow_their_user_whether_there_is_one_or_not(rig: Any, user: str) -> None:
    for number in range(FREE_FAILURES + 1):
        fail(rig, 100 + number, user)
    assert rig.shard.failed_logins == FREE_FAILURES + 1
    connect(rig, 1)
    client = ScramClient(user, encode_nonce(bytes(18)))
    rig.ask(1, Login(MECHANISM, client.first))
    assert rig.replies[1] == [], "it waits"
    rig.ask(1, Login(MECHANISM, client.first))
    assert rig.replies[1].pop()[1].code == BadRequest.code, "one at a time"
    connect(rig, 2)
    assert isinstance(begin(rig, 2, "bob")[1], LoginStep), "others do not"
    rig.tick(50)
    assert rig.replies[1] == []
    rig.tick(60)
    (answer,) = rig.replies[1]
    assert isinstance(answer[1], LoginStep)
    if user == "ann":
        last = rig.answer(1, Login(MECHANISM, proven(client, answer[1]).final))
        assert last.done, "nobody is locked out"


def test_guessing_in_parallel_is_no_faster(rig: Any) -> None:
    for number in range(30):
        fail_slowly(rig, 100 + number)
    for number in range(8):
        connect(rig, 200 + number)
        rig.ask(200 + number, Login(MECHANISM, ScramClient("ann", encode_nonce(bytes(18))).first))
    refused = [rig.replies[200 + number] for number in range(8)]
    assert [bool(one) for one in refused] == [False] * 5 + [True] * 3
    assert refused[-1][0][1].code == Overloaded.code
    rig.tick(2_000)
    assert [bool(rig.replies[200 + number]) for number in range(3)] == [True, False, False]


def test_who_guesses_keeps_nobody_out_but_its_own_address(rig: Any) -> None:
    """Counterexample: a guesser kept the line of a user full, and the user itself was refused."""
    for number in range(12):
        fail_slowly(rig, 100 + number, "192.0.2.66")
    for number in range(6):
        connect(rig, 200 + number, origin="192.0.2.66")
        rig.ask(200 + number, Login(MECHANISM, ScramClient("ann", encode_nonce(bytes(18))).first))
    assert rig.replies[205][0][1].code == Overloaded.code, "the guesser's line is full"
    connect(rig, 1, origin="192.0.2.7")
    client = ScramClient("ann", encode_nonce(bytes(18)))
    rig.ask(1, Login(MECHANISM, client.first))
    assert rig.replies[1] == [], "a user that is guessed at is slowed down"
    rig.tick(2_000)
    assert [len(rig.replies[200 + number]) for number in range(2)] == [1, 0]
    (answer,) = rig.replies[1]
    assert rig.answer(1, Login(MECHANISM, proven(client, answer[1]).final)).done


def test_guessing_in_parallel_from_another_address_is_no_faster_either(rig: Any) -> None:
    for number in range(12):
        fail_slowly(rig, 100 + number, "192.0.2.66")
    for number in range(6):
        connect(rig, 200 + number, origin="192.0.2.67")
        rig.ask(200 + number, Login(MECHANISM, ScramClient("ann", encode_nonce(bytes(18))).first))
    assert [bool(rig.replies[200 + number]) for number in range(6)] == [False] * 5 + [True]


def test_guesses_from_many_addresses_do_not_keep_the_user_out(rig: Any) -> None:
    """Counterexample: there was room for 1,024 that wait, and a guesser with that many addresses
    had it all.
    """
    for number in range(FREE_FAILURES + 10):
        fail_slowly(rig, 100 + number, f"192.0.2.{number}")
    first = ScramClient("ann", encode_nonce(bytes(18))).first
    for number in range(1_500):
        connect(rig, 1_000 + number, origin=f"10.0.{number // 256}.{number % 256}")
        rig.ask(1_000 + number, Login(MECHANISM, first))
    connect(rig, 1, origin="192.0.2.200")
    client = ScramClient("ann", encode_nonce(bytes(18)))
    rig.ask(1, Login(MECHANISM, client.first))
    assert rig.replies[1] == [], "a user that is guessed at is slowed down"
    rig.tick(2_000)
    (answer,) = rig.replies[1]
    assert rig.answer(1, Login(MECHANISM, proven(client, answer[1]).final)).done
    assert all(len(rig.replies[1_000 + number]) == 1 for number in range(1_500)), "in turn, too"


def fail_slowly(rig: Any, session: int, origin: str = "") -> None:
    connect(rig, session, origin=origin)
    client = ScramClient("ann", encode_nonce(bytes(18)))
    rig.ask(session, Login(MECHANISM, client.first))
    for _ in range(60):
        if rig.replies[session]:
            break
        rig.tick(100)
    step = rig.replies[session].pop()[1]
    rig.answer(session, Login(MECHANISM, proven(client, step, "wrong").final))


def test_a_shard_does_not_rest_while_a_login_is_slowed_down(rig: Any) -> None:
    """Else the user would wait for longer than `WAIT_SECONDS_MAX`."""
    for number in range(FREE_FAILURES + 10):
        fail_slowly(rig, 100 + number)
    for _ in range(4):
        rig.tick()
        rig.settle()
    assert rig.shard.idle_ms(1_000) == 1_000
    connect(rig, 1)
    rig.ask(1, Login(MECHANISM, ScramClient("ann", encode_nonce(bytes(18))).first))
    rig.tick()
    assert rig.shard.idle_ms(1_000) == 0
    rig.tick(2_000)
    assert len(rig.replies[1]) == 1
    assert rig.shard.idle_ms(1_000) == 1_000


def test_a_wrong_password_is_told_to_the_host(rig: Any) -> None:
    fail(rig, 1, "ann")
    (hangup,) = [one for one in rig.others if isinstance(one, ef.Hangup)]
    assert (hangup.session, hangup.failed) == (1, True)


# -- tickets -------------------------------------------------------------------------------------


def log_in(rig: Any, session: int, ticket: bytes = b"", origin: str = "") -> LoginStep:
    """Log ann in; return the last step."""
    connect(rig, session, origin=origin)
    client = ScramClient("ann", encode_nonce(session.to_bytes(18, "big")))
    step = rig.answer(session, Login(MECHANISM, client.first, ticket))
    return cast(LoginStep, rig.answer(session, Login(MECHANISM, proven(client, step).final)))


def guess_until_full(rig: Any, origin: str = "192.0.2.66") -> None:
    """Fill the line of an address with wrong passwords of ann."""
    for number in range(12):
        fail_slowly(rig, 5_000 + number, origin)
    for number in range(6):
        connect(rig, 6_000 + number, origin=origin)
        rig.ask(6_000 + number, Login(MECHANISM, ScramClient("ann", encode_nonce(bytes(18))).first))
    assert rig.replies[6_005][0][1].code == Overloaded.code


def test_a_ticket_has_a_line_of_its_own(rig: Any) -> None:
    """Counterexample: who guesses from the user's own address kept the user out."""
    ticket = log_in(rig, 1, origin="192.0.2.66").ticket
    guess_until_full(rig)
    again = log_in(rig, 2, ticket, origin="192.0.2.66")
    assert (again.done, again.user) == (True, ANN)
    assert again.ticket not in (b"", ticket)
    assert log_in(rig, 3, again.ticket, origin="192.0.2.99").done, "from everywhere"


def refused_ticket(rig: Any, session: int, ticket: bytes, user: str = "ann") -> tuple[Any, ...]:
    connect(rig, session)
    client = ScramClient(user, encode_nonce(bytes(18)))
    refused = rig.answer(session, Login(MECHANISM, client.first, ticket))
    assert hung_up(rig)[-1] == session, "a guesser does not pass its address by what is no ticket"
    assert rig.others[-1].failed
    return refused.code, refused.message, refused.detail


def test_a_ticket_that_is_not_good_says_nothing(rig: Any) -> None:
    access: Access = catalog_of(rig.shard).access
    access.apply(UserCreated("default/bob", verifier_of(PASSWORD)))
    ticket = log_in(rig, 1).ticket
    forged = bytes([*ticket[:-1], ticket[-1] ^ 1])
    words = {
        refused_ticket(rig, 2, forged),
        refused_ticket(rig, 3, ticket, "bob"),
        refused_ticket(rig, 4, ticket, "nobody"),
        refused_ticket(rig, 5, b"x"),
        refused_ticket(rig, 6, ticket, "a/b/c"),
    }
    rig.tick(TICKET_SECONDS * 1_000)
    words.add(refused_ticket(rig, 7, ticket))
    assert len(words) == 1


@pytest.mark.parametrize("change", ["password", "revoked", "made again"])
def test_a_ticket_ends_with_its_user_and_its_password(rig: Any, change: str) -> None:
    access: Access = catalog_of(rig.shard).access
    ticket = log_in(rig, 1).ticket
    if change == "password":
        access.apply(UserPasswordSet(ANN, verifier_of(PASSWORD)))
    else:
        access.apply(UserRevoked(ANN))
    if change == "made again":
        access.apply(UserCreated(ANN, verifier_of(PASSWORD)))
    assert refused_ticket(rig, 2, ticket)[0] == NotAuthenticated.code


def test_guesses_by_a_ticket_wait_in_its_line(rig: Any) -> None:
    """Who stole a ticket guesses no faster, and does not slow down the others."""
    ticket, other = log_in(rig, 1).ticket, log_in(rig, 2).ticket
    for session in range(10, 10 + FREE_FAILURES + 1):
        connect(rig, session)
        client = ScramClient("ann", encode_nonce(bytes(18)))
        step = rig.answer(session, Login(MECHANISM, client.first, ticket))
        wrong = proven(client, step, "wrong").final
        assert rig.answer(session, Login(MECHANISM, wrong)).code == NotAuthenticated.code
    connect(rig, 30)
    first = ScramClient("ann", encode_nonce(bytes(18))).first
    rig.ask(30, Login(MECHANISM, first, ticket))
    assert rig.replies[30] == [], "it waits"
    assert log_in(rig, 31, other).done


def test_a_ticket_comes_with_the_first_message(rig: Any) -> None:
    ticket = log_in(rig, 1).ticket
    connect(rig, 2)
    client, step = begin(rig, 2)
    final = proven(client, step).final
    assert rig.answer(2, Login(MECHANISM, final, ticket)).code == BadRequest.code


def is_ended(rig: Any, session: int) -> bool:
    """Return whether a connection was ended, and answers no other attempt either."""
    return session in hung_up(rig) and begin(rig, session)[1].code == BadRequest.code


@pytest.mark.parametrize("mechanism", ["PLAIN", MECHANISM, "BEARER"])
def test_who_shows_a_ticket_has_one_attempt(rig: Any, mechanism: str) -> None:
    """Counterexample: a made-up ticket passed the line of its address, a first message that was
    refused for another reason left the connection open, and the next one was served.
    """
    connect(rig, 1)
    rig.answer(1, Login(mechanism, b"junk", b"x"))
    assert is_ended(rig, 1)
    connect(rig, 2)
    rig.answer(2, Login(mechanism, b"junk"))
    assert (2 in hung_up(rig)) == (mechanism == "BEARER"), "without one no line was passed"


def test_a_login_by_a_ticket_goes_on_by_its_mechanism_or_ends(rig: Any) -> None:
    ticket = log_in(rig, 1).ticket
    connect(rig, 2)
    client = ScramClient("ann", encode_nonce(bytes(18)))
    assert not rig.answer(2, Login(MECHANISM, client.first, ticket)).done
    assert hung_up(rig) == []
    assert rig.answer(2, Login("BEARER", b"x")).code == BadRequest.code
    assert is_ended(rig, 2)
    assert not [one for one in rig.others if isinstance(one, ef.Hangup) and one.failed]


def test_a_second_message_of_a_login_by_a_ticket_is_no_second_attempt(rig: Any) -> None:
    ticket = log_in(rig, 1).ticket
    for session in range(10, 10 + FREE_FAILURES + 1):
        connect(rig, session)
        client = ScramClient("ann", encode_nonce(bytes(18)))
        step = rig.answer(session, Login(MECHANISM, client.first, ticket))
        rig.answer(session, Login(MECHANISM, proven(client, step, "wrong").final))
    first = Login(MECHANISM, ScramClient("ann", encode_nonce(bytes(18))).first, ticket)
    connect(rig, 30)
    rig.ask(30, first)
    assert rig.answer(30, first).code == BadRequest.code
    assert 30 in hung_up(rig)


def test_a_login_by_a_ticket_ends_where_no_registry_answers(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket = log_in(rig, 1).ticket
    connect(rig, 2)
    first = ScramClient("ann", encode_nonce(bytes(18))).first
    with monkeypatch.context() as patch:
        patch.setattr(type(trunks_of(rig.shard)), "in_sync", property(lambda _: False))
        assert rig.answer(2, Login(MECHANISM, first, ticket)).code == Unavailable.code
    assert is_ended(rig, 2)


def test_who_is_let_in_by_a_ticket_stays_whatever_it_says_then(rig: Any) -> None:
    ticket = log_in(rig, 1).ticket
    assert log_in(rig, 2, ticket).done
    assert begin(rig, 2)[1].code == BadRequest.code
    assert isinstance(rig.answer(2, m.Hello("x")), m.Welcome)
    assert hung_up(rig) == []


def test_a_slowed_login_by_a_ticket_ends_if_it_is_refused(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket = log_in(rig, 1).ticket
    for session in range(10, 10 + FREE_FAILURES + 1):
        connect(rig, session)
        client = ScramClient("ann", encode_nonce(bytes(18)))
        step = rig.answer(session, Login(MECHANISM, client.first, ticket))
        rig.answer(session, Login(MECHANISM, proven(client, step, "wrong").final))
    first = ScramClient("ann", encode_nonce(bytes(18))).first
    connect(rig, 30)
    rig.ask(30, Login(MECHANISM, first, ticket))

    def locked(*_: Any) -> bytes:
        raise Unavailable("the vault is locked")

    monkeypatch.setattr(Access, "open_secret", locked)
    assert 30 not in hung_up(rig)
    rig.tick(2_000)
    assert rig.replies[30].pop()[1].code == Unavailable.code
    assert 30 in hung_up(rig)


@pytest.mark.parametrize("hour", [-3_600_000, 3_600_000])
def test_a_clock_that_is_set_forgives_no_failure(rig: Any, hour: int) -> None:
    for number in range(FREE_FAILURES + 1):
        fail_slowly(rig, 100 + number)
    rig.time.wall += hour
    connect(rig, 10)
    rig.ask(10, Login(MECHANISM, ScramClient("ann", encode_nonce(bytes(18))).first))
    assert not rig.replies[10], "it waits as before"
    rig.tick(2_000)
    assert isinstance(rig.replies[10].pop()[1], LoginStep), "and for no longer"


def test_a_slowed_login_is_forgotten_with_its_connection(rig: Any) -> None:
    for number in range(30):
        fail_slowly(rig, 100 + number)
    first = ScramClient("ann", encode_nonce(bytes(18))).first
    for number in range(200):
        connect(rig, 1_000 + number, origin=f"10.0.0.{number}")
        rig.ask(1_000 + number, Login(MECHANISM, first))
    assert slowed_logins(rig.shard) == (200, 200)
    for number in range(199):
        rig.handle(ev.Closed(1_000 + number))
    waiting, kept = slowed_logins(rig.shard)
    assert waiting == 1
    assert kept <= 67, "nothing of theirs is kept"
    rig.tick(2_000)
    assert len(rig.replies[1_199]) == 1, "the one that stayed goes on"
    assert not any(rig.replies[1_000 + number] for number in range(199))


# -- certificates --------------------------------------------------------------------------------


def certify(rig: Any, session: int, user: str = ANN) -> Any:
    connect(rig, session)
    rig.handle(ev.Certified(session, user))
    return rig.answer(session, m.Hello("x"))


def test_a_certificate_of_a_user_is_that_user(rig: Any) -> None:
    set_mode(catalog_of(rig.shard).access, "closed")
    assert isinstance(certify(rig, 1), m.Welcome)
    assert principal(rig, 1) == f"user:{ANN}#2"
    assert hung_up(rig) == []


def test_a_certificate_of_an_unknown_user_says_what_none_says(rig: Any) -> None:
    set_mode(catalog_of(rig.shard).access, "closed")
    connect(rig, 1)
    alone = rig.answer(1, m.Hello("x"))
    refused = [certify(rig, session, user) for session, user in ((2, "default/bob"), (3, "x/ann"))]
    assert {(one.code, one.message, one.detail) for one in refused} == {
        (alone.code, alone.message, alone.detail)
    }
    assert hung_up(rig) == [1, 2, 3]


def test_a_certificate_of_a_user_who_was_revoked_lets_nobody_in(rig: Any) -> None:
    access = catalog_of(rig.shard).access
    set_mode(access, "closed")
    certify(rig, 1)
    access.apply(UserRevoked(ANN))
    assert end_revoked(rig.shard) == [1]
    assert certify(rig, 2).code == NotAuthenticated.code
    access.apply(UserCreated(ANN, verifier_of(PASSWORD)))
    assert isinstance(certify(rig, 3), m.Welcome), "a certificate knows names, not numbers"
    assert principal(rig, 3) != f"user:{ANN}#2"


def test_a_login_goes_before_a_certificate(rig: Any) -> None:
    access = catalog_of(rig.shard).access
    access.apply(UserCreated("default/bob", verifier_of("x")))
    connect(rig, 1)
    rig.handle(ev.Certified(1, "default/bob"))
    client, step = begin(rig, 1)
    assert rig.answer(1, Login(MECHANISM, proven(client, step).final)).user == ANN
    assert isinstance(rig.answer(1, m.Hello("x")), m.Welcome)
    assert principal(rig, 1) == f"user:{ANN}#2"


def test_who_has_a_certificate_waits_for_news_of_revocations(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trunks = trunks_of(rig.shard)
    monkeypatch.setattr(type(trunks), "in_sync", property(lambda _: False))
    assert certify(rig, 1).code == Unavailable.code
    assert principal(rig, 1) == "anonymous"


def test_a_certificate_that_is_shown_later_changes_nothing(rig: Any) -> None:
    connect(rig, 1)
    rig.answer(1, m.Hello("x"))
    rig.handle(ev.Certified(1, ANN))
    rig.answer(1, m.Hello("x"))
    assert principal(rig, 1) == "anonymous"
