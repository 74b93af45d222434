"""Secrets of the registry are wrapped before they are written, and rewrapped without being lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from rigs.access import verifier_of
from rigs.shards import catalog_of
from weir.access.credentials import ScramVerifier, derive_key
from weir.access.devices import Nonces
from weir.access.scram import MECHANISM, ScramClient, ScramProof, encode_nonce
from weir.access.wrapping import KeyRing
from weir.broker.api import events as ev
from weir.broker.metadata.catalog import Catalog
from weir.broker.metadata.security.access import Access
from weir.broker.metadata.security.rewrapping import check_opens
from weir.broker.metadata.security.vault import NO_VAULT, Vault
from weir.broker.records.security import (
    REWRAPPED_ROWS_MAX,
    AccessFounded,
    RewrappedRow,
    UserCreated,
    UserPasswordSet,
    digest_of,
)
from weir.errors import BadRequest, Unavailable
from weir.protocol.client import access as w
from weir.protocol.client import fleets as f
from weir.protocol.client.access import Login, LoginStep

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
PASSWORD = "a marked password"
FLEET_KEY = b"marked fleet key, 32 bytes long."
OF_ANN = verifier_of(PASSWORD)
#: What nobody may find where it is stored.
MARKED = (OF_ANN.stored_key, OF_ANN.server_key, PASSWORD.encode(), FLEET_KEY)


def founded(make_rig: Callable[..., Any], ring: KeyRing | None) -> Any:
    rig = make_rig(secret_bytes=random.Random(7).randbytes, key_ring=ring)
    rig.connect()
    rig.topic(1, "t")
    rig.answer(1, w.ChangeUser("create", "ann", OF_ANN))
    if ring is not None:
        rig.answer(1, f.PutFleet("locks", 40, 49, 1, 1, FLEET_KEY))
    return rig


def restart(rig: Any, *keys: bytes) -> None:
    """Crash, and come back with these keys."""
    rig.settings = replace(rig.settings, key_ring=KeyRing(keys) if keys else None)
    rig.disk.crash()
    rig.boot()
    rig.settle()
    rig.connect()


def files(rig: Any) -> Iterator[bytes]:
    """All that lies on the disk, with a checkpoint."""
    rig.shard.writers[0].checkpoints.save()
    rig.tick()
    rig.settle()
    for name in rig.disk.names():
        yield rig.disk.read(name, 0, rig.disk.size(name))


def logs_in(rig: Any, session: int = 60, password: str = PASSWORD) -> bool:
    rig.replies[session] = []
    rig.handle(ev.Opened(session))
    rig.handle(ev.Secured(session))
    client = ScramClient("ann", encode_nonce(bytes(18)))
    step = rig.answer(session, Login(MECHANISM, client.first))
    if not isinstance(step, LoginStep):
        return False
    challenge = client.challenged(step.message)
    key = derive_key(password, challenge.salt, challenge.iterations)
    last = rig.answer(session, Login(MECHANISM, ScramProof(challenge, key).final))
    return isinstance(last, LoginStep) and last.done


def test_nothing_secret_is_written(make_rig: Callable[..., Any]) -> None:
    rig = founded(make_rig, KeyRing([OLD]))
    rig.answer(1, w.ChangeUser("password", "ann", OF_ANN))
    secret = catalog_of(rig.shard).access.secret
    assert len(secret) > 64, "it is wrapped, too"
    written = b"".join(files(rig))
    assert b"ann" in written
    assert b"locks" in written
    for marked in MARKED:
        assert marked not in written
    restart(rig, OLD)
    assert logs_in(rig)
    assert not logs_in(rig, 61, "another password")


def test_without_a_key_file_it_is_written_as_it_is(make_rig: Callable[..., Any]) -> None:
    """So the test above can fail."""
    rig = founded(make_rig, None)
    assert OF_ANN.stored_key in b"".join(files(rig))
    assert rig.answer(1, w.RewrapSecrets(True)).code == BadRequest.code
    restart(rig, OLD)
    assert rig.answer(1, w.RewrapSecrets(True)) == w.SecretsLeft(2)
    assert rig.answer(1, w.RewrapSecrets()) == w.SecretsLeft(0)
    assert isinstance(catalog_of(rig.shard).access.user("default/ann").verifier, bytes)
    assert logs_in(rig)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_secrets_are_rewrapped_and_the_old_key_goes(
    make_rig: Callable[..., Any], checkpoint: bool
) -> None:
    rig = founded(make_rig, KeyRing([OLD]))
    version = catalog_of(rig.shard).access.version
    restart(rig, NEW, OLD)
    assert logs_in(rig, 59), "until it is rewrapped, the key before opens it"
    assert rig.answer(1, w.RewrapSecrets(True)) == w.SecretsLeft(3)
    assert rig.answer(1, w.RewrapSecrets()) == w.SecretsLeft(0)
    assert rig.answer(1, w.RewrapSecrets()) == w.SecretsLeft(0)
    assert catalog_of(rig.shard).access.version == version, "nobody's rights change"
    if checkpoint:
        list(files(rig))
    restart(rig, NEW)
    assert logs_in(rig)
    assert rig.answer(1, f.ListFleets()).opens
    restart(rig, OLD)
    assert not logs_in(rig, 61)
    assert rig.answer(1, w.ChangeUser("create", "ann", OF_ANN)).code == Unavailable.code


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_who_is_not_there_takes_the_work_of_who_is(
    make_rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, is_wrapped: bool
) -> None:
    """What a login opens is counted: to open nothing would be quicker, which can be measured."""
    rig = founded(make_rig, KeyRing([OLD]))
    if not is_wrapped:  # a user of before the key file, while others are wrapped already
        access = catalog_of(rig.shard).access
        access.apply(UserPasswordSet("default/ann", OF_ANN))
    opened: list[int] = []
    unseal = Vault.unseal

    def unsealed(vault: Vault, wrapped: bytes, purpose: str) -> bytes:
        found = unseal(vault, wrapped, purpose)
        opened.append(len(found))
        return found

    monkeypatch.setattr(Vault, "unseal", unsealed)
    work = {}
    for session, user in enumerate(("ann", "nobody", "ann", "nobody", "bad name", ":rescue"), 60):
        rig.replies[session] = []
        rig.handle(ev.Opened(session))
        rig.handle(ev.Secured(session))
        opened.clear()
        client = ScramClient(user, encode_nonce(bytes(18)))
        assert isinstance(rig.answer(session, Login(MECHANISM, client.first)), LoginStep)
        work[session] = [*opened]
    assert len(work[60]) == 2, "the secret of false salts, and a verifier"
    assert work == dict.fromkeys(work, work[60])


def salt_of_nobody(rig: Any, session: int) -> bytes | None:
    rig.replies[session] = []
    rig.handle(ev.Opened(session))
    rig.handle(ev.Secured(session))
    client = ScramClient("nobody", encode_nonce(bytes(18)))
    step = rig.answer(session, Login(MECHANISM, client.first))
    return client.challenged(step.message).salt if isinstance(step, LoginStep) else None


def test_false_salts_stay_what_they_are(make_rig: Callable[..., Any]) -> None:
    """Else who asks before and after a rotation learns which users there are."""
    rig = founded(make_rig, KeyRing([OLD]))
    before = salt_of_nobody(rig, 70)
    restart(rig, NEW, OLD)
    rig.answer(1, w.RewrapSecrets())
    assert before is not None
    assert before == salt_of_nobody(rig, 71)
    restart(rig, OLD)
    assert salt_of_nobody(rig, 72) is None, "who cannot open it refuses all alike"


def test_many_secrets_survive_a_crash_at_any_step(make_rig: Callable[..., Any]) -> None:
    rig = founded(make_rig, KeyRing([OLD]))
    access = catalog_of(rig.shard).access
    many = 2 * REWRAPPED_ROWS_MAX
    for number in range(many):
        rig.answer(1, w.ChangeUser("create", f"user{number}", OF_ANN))
    left = many + 3
    restart(rig, NEW, OLD)
    rig.ask(1, w.RewrapSecrets())  # the answer is never seen
    restart(rig, NEW, OLD)
    while left:
        assert logs_in(rig, 1_000 + left)
        told = rig.answer(1, w.RewrapSecrets())
        assert isinstance(told, w.SecretsLeft), told
        left = told.left
        restart(rig, NEW, OLD)
    access = catalog_of(rig.shard).access
    ring = Vault(None, KeyRing([NEW]))
    assert len([*access.users()]) == many + 1
    assert {access.open_verifier(user, ring) for user in access.users()} == {OF_ANN}
    assert check_opens(ring, access)
    assert not check_opens(Vault(None, KeyRing([OLD])), access)
    assert not check_opens(NO_VAULT, access)


def test_a_password_that_is_set_meanwhile_is_not_undone() -> None:
    access = Access()
    access.apply(AccessFounded(b"f" * 32))
    access.apply(UserCreated("default/ann", OF_ANN))
    other = verifier_of("the next password")
    row = RewrappedRow("user", "default/ann", 0, digest_of(other), b"w" * 130)
    access.rewrap(row)
    access.rewrap(RewrappedRow("user", "default/bob", 0, digest_of(other), b"w" * 130))
    access.rewrap(RewrappedRow("salts", "", 0, digest_of(other), b"w" * 130))
    user = access.user("default/ann")
    assert user is not None
    assert (user.verifier, access.secret) == (OF_ANN, b"f" * 32)


def test_a_verifier_opens_in_its_own_row_alone() -> None:
    vault = Vault(Nonces(b"s" * 32), KeyRing([OLD]))
    access = Access()
    access.apply(AccessFounded(b"f" * 32))
    stolen = vault.seal(msgspec.msgpack.encode(OF_ANN), "verifier of user default/ann")
    access.apply(UserCreated("default/ann", stolen))
    access.apply(UserCreated("default/root", stolen))
    ann, root = access.user("default/ann"), access.user("default/root")
    assert ann is not None
    assert root is not None
    assert access.open_verifier(ann, vault) == OF_ANN
    with pytest.raises(Unavailable, match="wrapped for something else"):
        access.open_verifier(root, vault)
    access.apply(UserCreated("default/odd", vault.seal(b"x" * 40, "verifier of user default/odd")))
    odd = access.user("default/odd")
    assert odd is not None
    with pytest.raises(Unavailable, match="set a password"):
        access.open_verifier(odd, vault)


def test_a_checkpoint_brings_back_what_is_stored() -> None:
    access = Access()
    for verifier in (OF_ANN, b"w" * 130):
        access.apply(UserCreated(f"default/u{access.version}", verifier))
    catalog = Catalog()
    catalog.access = access
    again = Catalog.decode(msgspec.msgpack.decode(msgspec.msgpack.encode(catalog.encode())))
    kept = [user.verifier for user in again.access.users()]
    assert kept == [OF_ANN, b"w" * 130]
    assert isinstance(kept[0], ScramVerifier)
