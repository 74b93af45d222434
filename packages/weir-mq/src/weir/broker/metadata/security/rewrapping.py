"""Secrets of the registry get wrapped by the key that wraps now: some at a time, each by an entry.

A crash in between loses nothing: what is not rewrapped yet is opened by the key before, as long as
the key file has that. The client asks again until nothing is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Protocol

import msgspec

from weir.broker.metadata.security.access import Access
from weir.broker.metadata.security.fleets import Fleets
from weir.broker.metadata.security.vault import (
    FALSE_SALTS,
    Vault,
    purpose_of_token_key,
    purpose_of_verifier,
)
from weir.broker.records.security import (
    REWRAPPED_ROWS_MAX,
    RewrappedRow,
    SecretsRewrapped,
    digest_of,
    purpose_of,
)
from weir.broker.replica.requests import Proposals
from weir.broker.runtime.outbox import Caller
from weir.errors import BadRequest, Refused, Unavailable
from weir.protocol.client.access import RewrapSecrets, SecretsLeft
from weir.protocol.client.messages import Reply


class SecretCatalog(Protocol):
    """What has secrets."""

    access: Access
    fleets: Fleets


class SecretLog(Protocol):
    """The registry's log."""

    def propose(self, record: SecretsRewrapped, /) -> int:
        """Propose an entry; return its index. Raises `Unavailable` where it is not led here."""


class Replies(Protocol):
    """Where the registry's answers go."""

    def reply(self, caller: Caller, reply: Reply) -> None:
        """Answer a request."""

    def refuse(self, caller: Caller, error: Refused) -> None:
        """Answer with a refusal."""


class Rewrapping:
    """Rewraps what is asked for, and counts what is left."""

    __slots__ = ("_catalog", "_outbox", "_proposals", "_vault")

    def __init__(
        self, catalog: SecretCatalog, outbox: Replies, log: SecretLog, vault: Vault
    ) -> None:
        """Change `catalog` by entries of `log`; the keys are those of `vault`."""
        self._catalog = catalog
        self._outbox = outbox
        self._vault = vault
        self._proposals: Proposals[SecretsRewrapped, Caller] = Proposals(log)

    def lose(self, error: Refused) -> None:
        """This node no longer leads: refuse callers that wait for a change."""
        for caller in self._proposals.lose():
            self._outbox.refuse(caller, error)

    def rewrap(self, caller: Caller, request: RewrapSecrets) -> None:
        """Propose that some secrets are rewrapped, and say how many are left then. Raises
        `BadRequest` without a key file, and `Unavailable` where it lacks the key of one.
        """
        if not self._vault.wraps:
            raise BadRequest(
                "this node has no key file: set access.key_file on all nodes, to a copy of one file"
            )
        if request.count_only:
            self._outbox.reply(caller, SecretsLeft(self._left()))
            return
        rows = tuple(map(self._rewrapped, islice(self._old(), REWRAPPED_ROWS_MAX)))
        if rows:
            self._proposals.propose(SecretsRewrapped(rows), caller)
        else:
            self._outbox.reply(caller, SecretsLeft(0))

    def apply(self, index: int, record: SecretsRewrapped) -> None:
        """Apply a committed record, and answer who asked for it."""
        caller = self._proposals.applied(index)
        for row in record.rows:
            if row.kind == "fleet":
                self._catalog.fleets.rewrap(row)
            else:
                self._catalog.access.rewrap(row)
        if caller is not None:
            self._outbox.reply(caller, SecretsLeft(self._left()))

    def _old(self) -> Iterator[tuple[str, str, int, object]]:
        """Yield the kind, name, version and stored form of what is not wrapped by the key of now.

        What false salts are made of comes first: no login works without.
        """
        access, current = self._catalog.access, self._vault.is_current
        if access.secret and not current(access.secret):
            yield "salts", "", 0, access.secret
        for user in access.users():
            if not isinstance(user.verifier, bytes) or not current(user.verifier):
                yield "user", user.name, 0, user.verifier
        for fleet in self._catalog.fleets:
            for key in fleet.keys:
                if not current(key.wrapped):
                    yield "fleet", fleet.name, key.version, key.wrapped
        for issuer in access.issuers:
            for one in issuer.keys:
                if one.wrapped and not current(one.wrapped):
                    yield "token", one.public.key_id, 0, one.wrapped

    def _left(self) -> int:
        return sum(1 for _ in self._old())

    def _rewrapped(self, old: tuple[str, str, int, object]) -> RewrappedRow:
        kind, name, version, stored = old
        vault, access = self._vault, self._catalog.access
        if kind == "user":
            purpose = purpose_of_verifier(name)
            secret = (
                vault.unseal(stored, purpose)
                if isinstance(stored, bytes)
                else msgspec.msgpack.encode(stored)
            )
        elif kind == "salts":
            purpose = FALSE_SALTS
            secret = access.open_secret(vault)
        else:
            assert isinstance(stored, bytes)
            purpose = purpose_of_token_key(name) if kind == "token" else purpose_of(name, version)
            secret = vault.unseal(stored, purpose)
        before = digest_of(stored)  # type: ignore[arg-type]
        return RewrappedRow(kind, name, version, before, vault.seal(secret, purpose))  # type: ignore[arg-type]


def check_opens(vault: Vault, access: Access) -> bool:
    """Return whether this node opens all secrets of users."""
    try:
        access.open_secret(vault)
        for user in access.users():
            access.open_verifier(user, vault)
    except Unavailable:
        return False
    return True
