"""Guards a node's pages: everybody may see its health, and in a closed set the others need a user
who may `list system`, by a bearer token or by a certificate.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Protocol

from weir.access.failures import Failures, origin_of
from weir.broker.shard import Shard
from weir.errors import NotAuthenticated, Unavailable
from weir.model.ids import is_loopback
from weir.server.config import TlsConfig
from weir.server.network.tls import TlsAcceptor
from weir.server.observability.endpoint import PLAIN, Answer, Visitor
from weir.tls.identity import Role
from weir.tls.peers import PeerCertificate


class Mode(Protocol):
    """What knows the mode of access."""

    @property
    def mode(self) -> str:
        """The mode, as far as it is known here."""


class NodeGuard:
    """Guards the pages of a shard."""

    def __init__(self, shard: Shard, tls: TlsAcceptor, config: TlsConfig, mode: Mode) -> None:
        """Go by the users and rules of `shard`, and serve the certificate of its port."""
        self._shard = shard
        self._tls = tls
        self._plaintext = config.plaintext
        self._mode = mode
        self._failures = Failures()

    @property
    def context(self) -> ssl.SSLContext | None:
        """What is served by TLS; None if the node has no certificate."""
        serving = self._tls.serving
        return None if serving is None else serving.context

    async def check(self, visitor: Visitor) -> Answer | None:
        """Return why a page is not shown, or None. A visitor that failed before waits."""
        if refusal := self._check_channel(visitor):
            return 403, PLAIN, refusal
        if self._mode.mode != "closed":
            return None
        origin = origin_of(visitor.address)
        now = asyncio.get_running_loop().time()
        seconds = self._failures.seconds(origin, now)
        if seconds is None:
            return 429, PLAIN, "too many requests from this address failed: wait a minute\n"
        await asyncio.sleep(seconds)
        if visitor.token and not (visitor.is_private or is_loopback(visitor.address)):
            return 403, PLAIN, "send tokens by https only: others on the network could read them\n"
        try:
            if self._is_allowed(visitor):
                return None
        except NotAuthenticated:
            self._failures.failed(origin, now)
            text = "this set is closed: give a bearer token, or the certificate of a user\n"
            return 401, PLAIN, text
        except Unavailable as error:
            return 503, PLAIN, f"{error}\n"
        return 403, PLAIN, "this user may not: weir acl allow ROLE list system\n"

    def _check_channel(self, visitor: Visitor) -> str:
        """Return why a visitor without TLS is refused; empty if it is not, as at the port."""
        if visitor.is_private or self._tls.serving is None or self._plaintext == "allow":
            return ""
        if self._plaintext == "loopback" and is_loopback(visitor.address):
            return ""
        return "this node takes TLS only: ask by https\n"

    def _is_allowed(self, visitor: Visitor) -> bool:
        """Return whether a visitor may see them. Raises `NotAuthenticated` for unknown visitors."""
        if visitor.token:
            return self._shard.token_allows(visitor.token, "list", "system")
        self._shard.check_news()
        access = self._shard.registry.catalog.access
        user = access.user(self._user_of(visitor.peer))
        if user is None:
            raise NotAuthenticated("no such user")
        return access.authorize(user.principal, "list", "system", "") is not None

    def _user_of(self, peer: PeerCertificate | None) -> str:
        """Return the full name of the user whose certificate was shown; empty for nobody's."""
        serving = self._tls.serving
        if peer is None or serving is None or serving.own.identity is None:
            return ""
        who, own = peer.identity, serving.own.identity
        if who is None or (who.system, who.role) != (own.system, Role.USER):
            return ""
        if peer.serial in serving.revoked or peer.ends <= time.time():
            return ""
        return "/".join(who.names)
