"""Whether a node serves everybody in a network: it listens beyond loopback in a set that is not
closed.

Such a node starts only where `access.insecure` says that this is meant. The mode is an entry of the
registry, which a node has only once it is linked to the others. So it notes in its folder what the
mode was when it last knew, and goes by that note when it starts. A node that was never in a closed
set has no note.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from typing import TYPE_CHECKING

from weir.model.ids import is_loopback
from weir.server.config import BadConfig, Config
from weir.server.disk.node_folder import NodeFolder
from weir.server.status import Reminder

if TYPE_CHECKING:  # a supervisor asks whether a node is exposed, and needs no shard
    from weir.broker.shard import Shard

log = logging.getLogger(__name__)

CLOSED = "closed"
_LOOK_SECONDS = 1.0


def is_reachable(host: str) -> bool:
    """Return whether somebody on another machine reaches what listens on a host.

    A name that is not known here reaches nobody: nothing can listen on it.
    """
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return not is_loopback(host)
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return not all(is_loopback(str(address[0])) for *_, address in found)


def check_exposure(config: Config) -> None:
    """Raise `BadConfig` for a node that anybody in a network could use, and that is not meant."""
    node = config.node
    if config.access.insecure or not is_reachable(node.host):
        return
    mode = NodeFolder(node.data).access_mode() or "open"
    if mode == CLOSED:
        return
    raise BadConfig(
        [
            f"node.host is {node.host}, and this node's set is not closed (mode {mode}): anyone "
            "who reaches it could do everything. Listen on 127.0.0.1, or close the set (weir "
            "access mode closed), or say by --insecure (access.insecure) that this is meant"
        ]
    )


class ExposureWatch:
    """Notes the mode in the node's folder while it is entered, and in a closed set which folders
    are its nodes; warns each minute while anybody in a network may use this node.
    """

    def __init__(self, shard: Shard, config: Config) -> None:
        """Look at what `shard` knows."""
        self._shard = shard
        #: The first shard of a node writes for all.
        self._is_first = shard.identity.shard == 0
        self._folder = NodeFolder(config.node.data)
        self._host = config.node.host
        self._is_insecure = config.access.insecure
        self._noted = self._folder.access_mode()
        self._noted_births: dict[int, int] | None = None
        self._reminder = Reminder()
        self._timer: asyncio.TimerHandle | None = None
        self.is_reachable = is_reachable(config.node.host)

    @property
    def mode(self) -> str:
        """The mode of access: of now, or what was last heard of it."""
        return self._shard.access_mode or self._noted or "open"

    @property
    def is_exposed(self) -> bool:
        """Whether anybody in a network may use this node now, as far as it knows."""
        return self.is_reachable and self.mode != CLOSED

    def __enter__(self) -> ExposureWatch:
        self._look()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._note()

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)
        self._note()
        if self._is_first and self._reminder.is_due("exposed", self.is_exposed):
            more = "" if self._is_insecure else "; without --insecure it will not start again"
            log.warning(
                "anyone who reaches %s may do everything here, because the set is not closed: "
                "weir access mode closed%s",
                self._host,
                more,
                extra={"fields": {"host": self._host}},
            )

    def _note(self) -> None:
        """Write down the mode, if that is known and not what was written; before it, the births of
        nodes, by which this one knows them in a closed set when it starts again.
        """
        mode = self._shard.access_mode
        births = _births(self._shard) if mode == CLOSED else self._noted_births
        if not mode or (mode == (self._noted or "open") and births == self._noted_births):
            return
        if not self._is_first:
            self._noted, self._noted_births = mode, births
            return
        try:
            if births is not None and births != self._noted_births:
                self._folder.note_births(births)
            if mode != (self._noted or "open"):
                self._folder.note_access_mode(mode)
        except OSError as error:
            if self._reminder.is_due("note"):
                log.warning(
                    "the mode of access cannot be noted in %s: %s",
                    self._folder.path,
                    error.strerror,
                )
        else:
            self._noted, self._noted_births = mode, births


def _births(shard: Shard) -> dict[int, int]:
    """Return the births of nodes, by node, as far as they are known here."""
    return {one.id: one.birth for one in shard.registry.catalog.nodes.all() if one.birth}
