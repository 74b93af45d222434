"""Nodes that take TLS, with a CA of their own that goes when they do."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from weir.server.disk.node_folder import NodeFolder
from weir.testing.nodes import NodeSet, Patient, Serving, running_node
from weir.tls.authority import Authority, Issued, begun
from weir.tls.files import ClientFiles
from weir.tls.identity import node, parse_identity
from weir_lab.bench.sides.own import QUIET

_HOSTS = ("127.0.0.1", "localhost")
_DAYS = 2


class Certified:
    """Nodes that run, the CA's bundle, and the certificate of a device."""

    def __init__(self, nodes: Serving, bundle: Path, device: Issued) -> None:
        """Keep where they are."""
        self.nodes = nodes
        self._bundle = bundle
        self._device = device

    @property
    def url(self) -> str:
        """What `weir.connect` takes to connect by TLS."""
        return f"{self.nodes.url.replace('weir://', 'weirs://')}?ca={self._bundle}"

    def files(self, mutual: bool) -> ClientFiles:
        """Return what a device connects with; `mutual`: with a certificate of its own."""
        if not mutual:
            return ClientFiles(str(self._bundle))
        return ClientFiles(str(self._bundle), str(self._device.certificate), str(self._device.key))


@contextmanager
def certified_nodes(folder: str | None, replicas: int = 1, shards: int = 0) -> Iterator[Certified]:
    """Run one node of so many shards (0: one a core), or a set of nodes of one shard each, whose
    links are by mutual TLS.
    """
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-", dir=folder) as name,
        ExitStack() as stack,
    ):
        place = Path(name) / "data"
        if replicas == 1:
            founded = NodeFolder(place).found(0)
            with begun(Path(name) / "ca", founded.system) as ca:
                one, device = _issue(ca, 1), _device(ca)
            running = running_node(
                place, shards=shards, certificate=str(one.certificate), key=str(one.key),
                trust=str(ca.bundle),
            )  # fmt: skip
            yield Certified(stack.enter_context(running), ca.bundle, device)
            return
        place.mkdir()
        nodes = NodeSet(place, replicas, 1, settings=QUIET)
        with begun(Path(name) / "ca", nodes.system) as ca:
            for member in nodes.members:
                one = _issue(ca, member.node)
                settings = {
                    "WEIR__TLS__CERTIFICATE": str(one.certificate),
                    "WEIR__TLS__KEY": str(one.key),
                    "WEIR__TLS__TRUST": str(ca.bundle),
                    "WEIR__LINKS__TLS": "require",
                }
                nodes.let(member.node, settings)
            device = _device(ca)
        stack.callback(nodes.stop)
        nodes.start(Patient())
        yield Certified(nodes, ca.bundle, device)


def _issue(ca: Authority, number: int) -> Issued:
    return ca.issue(node(ca.system, number), _HOSTS, _DAYS)


def _device(ca: Authority) -> Issued:
    return ca.issue(parse_identity(f"weir://{ca.system:x}/{ca.set}/device/1/0"), (), _DAYS)
