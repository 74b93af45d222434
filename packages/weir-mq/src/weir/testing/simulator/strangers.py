"""A node founded under the number of another, as a link meets it: it lets everybody in."""

from __future__ import annotations

from weir.model.limits import FORMAT_LEVEL
from weir.protocol.link import Greeting, LinkAnswer, Verdict, decode_hello, encode_greeting, prove
from weir.testing.simulator.network import End, Link, Way
from weir.testing.simulator.world import World

#: Of a folder that no set knows.
_BIRTH = 404


class Stranger:
    """Answers hellos as who was meant, with the birth of another folder; then it says nothing."""

    def __init__(self, world: World) -> None:
        """Be there."""
        self._world = world
        self._greetings: dict[Link, Greeting] = {}

    def connect(self, client: End, up: Way, down: Way, site: str) -> Link:
        """Open a connection."""
        link = Link(self._world, client, self, up, down)
        self._greetings[link] = Greeting()
        return link

    def received(self, link: Link, data: bytes) -> None:
        """Answer a hello."""
        greeting = self._greetings.get(link)
        if greeting is None or (body := greeting.receive(data)) is None:
            return
        del self._greetings[link]
        hello = decode_hello(body)
        answer = LinkAnswer(
            Verdict.ACCEPTED, "", hello.to_node, hello.to_shard, hello.to_shard + 1, FORMAT_LEVEL,
            _BIRTH, proof=prove(_BIRTH, hello),
        )  # fmt: skip
        link.to_client(encode_greeting(answer))

    def lost(self, link: Link) -> None:
        """Who linked is gone."""
        self._greetings.pop(link, None)
