"""Nodes whose devices must prove their identity, for a burst of them."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weir.access.devices import FLEET_KEY_BYTES, Level
from weir.client.client import connect
from weir.server.key_files import create_key_file
from weir.testing.nodes import Serving, running_node, running_set
from weir_lab.bench.sides.certified import certified_nodes
from weir_lab.bench.sides.device_logins import Auth, Login
from weir_lab.bench.sides.own import QUIET, Own, running_own

#: A fleet for each tag has at least one device.
TAGS_MAX = 1_000


class Fleets(Own):
    """Nodes with a key file; `prepare` makes the fleets of all devices, one for each tag."""

    def __init__(self, node: Serving, replicas: int, auth: Auth, devices: int, tags: int) -> None:
        """Take nodes that are up. Hubs 0 up to `devices` have fleets; with 0 `tags` one without."""
        super().__init__(node, replicas)
        self._devices, self._tags = devices, tags
        self._key = secrets.token_bytes(FLEET_KEY_BYTES)
        self._level = Level.SIGNED if auth == "signed" else Level.PROOF
        self.login = Login(auth)

    async def prepare(self, topic: str) -> None:
        """Make the topic, then the fleets."""
        await super().prepare(topic)
        if self.login.key:  # they are there
            return
        count = max(self._tags, 1)
        async with connect(self.url, name="weir-bench") as client:
            for number in range(count):
                first, behind = (self._devices * n // count for n in (number, number + 1))
                tag = f"site{number}" if self._tags else ""
                await client.fleets.put(
                    f"fleet{number}", first, behind - 1, self._level, 1, self._key, tag
                )
            self.login = Login(self.login.auth, self._key, client.welcome.system)


@contextmanager
def running_for(
    auth: Auth, devices: int, tags: int, folder: str | None, replicas: int
) -> Iterator[Own]:
    """Run a node, or a set of them, to which so many devices are to log in like this."""
    if auth == "none":
        with running_own(folder, replicas) as own:
            yield own
    elif auth == "tls":
        with running_certified(folder, replicas) as own:
            yield own
    else:
        with tempfile.TemporaryDirectory(prefix="weir-bench-", dir=folder) as name:
            key_file, place = Path(name) / "key", Path(name) / "data"
            create_key_file(key_file)
            if replicas == 1:
                with running_node(place, key_file=str(key_file)) as node:
                    yield Fleets(node, replicas, auth, devices, tags)
                return
            place.mkdir()
            settings = {**QUIET, "WEIR__ACCESS__KEY_FILE": str(key_file)}
            with running_set(place, replicas, settings=settings) as nodes:
                yield Fleets(nodes, replicas, auth, devices, tags)


@contextmanager
def running_certified(folder: str | None, replicas: int) -> Iterator[Own]:
    """Run a node, or a set of them with links by mutual TLS, whose clients and devices come by
    TLS.
    """
    with certified_nodes(folder, replicas) as certified:
        own = Own(certified.nodes, replicas, certified.url)
        own.login = Login("tls", ca=certified.files(mutual=False).ca)
        yield own
