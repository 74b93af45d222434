"""A relay whose core says what a test tells it to say."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

from weir.errors import Unavailable
from weir.model.ids import Address
from weir.protocol.client import messages as m
from weir.relay.state import RelayState
from weir.relay_node.consumers import clusters
from weir.relay_node.host import RelayHost
from weir.relay_node.requests import AnswerRoom, Places, RelayRequests
from weir.relay_node.sessions import ReaderSession


class ScriptedCore:
    """A relay whose partition is empty, and a session in a core that says what is told."""

    is_reached = True

    def __init__(self, *answers: m.Reply) -> None:
        self.asked: list[m.Request] = []
        self._answers = [*answers]
        self._held = SimpleNamespace(state=RelayState())
        self.requests = clusters.ClusterRequests(cast(RelayHost, self), cast(RelayRequests, self))

    def partition(self, _: Address) -> tuple[object, object]:
        return SimpleNamespace(news={1: asyncio.Event()}), self._held

    async def ask_core(self, request: m.Request, *_: object) -> m.Reply:
        self.asked.append(request)
        if not self._answers:
            raise Unavailable("the core is away")
        return self._answers.pop(0)

    async def ask(self, request: clusters.ClusterRequest) -> m.Reply:
        room, session = AnswerRoom(Places(1)), cast(ReaderSession, self)
        return await self.requests.answer(request, room, session)


AT = Address(0, 0, 1)
ACK = m.Ack(AT, "crew", [(1, 0, 1)])
