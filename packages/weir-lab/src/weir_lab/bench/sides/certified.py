"""Nodes that take TLS, with a CA of their own that goes when they do."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from weir.server.disk.node_folder import NodeFolder
from weir.testing.nodes import NodeSet, Patient, Serving, running_node
from weir.tls.authority import REVOKED, Authority, Issued, begun, opened
from weir.tls.files import ClientFiles
from weir.tls.identity import node, parse_identity
from weir_lab.bench.sides.own import QUIET

_HOSTS = ("127.0.0.1", "localhost")
_DAYS = 2


class Certified:
    """Nodes that run, the CA's folder and bundle, and the certificate of a device."""

    def __init__(self, nodes: Serving, bundle: Path, device: Issued) -> None:
        """Keep where they are."""
        self.nodes = nodes
        self.ca = bundle.parent
        self._bundle = bundle
        self._device = device

    @property
    def url(self) -> str:
        """What `weir.connect` takes to connect by TLS."""
        return f"{self.nodes.url.replace('weir://', 'weirs://')}?ca={self._bundle}"

    def issue(self, who: str) -> Issued:
        """Issue a certificate to `user/default/ann`, or to `device/7/0`."""
        with opened(self.ca) as ca:
            return ca.issue(parse_identity(f"weir://{ca.system:x}/{ca.set}/{who}"), (), _DAYS)

    def files(self, mutual: bool) -> ClientFiles:
        """Return what a device connects with; `mutual`: with a certificate of its own."""
        if not mutual:
            return ClientFiles(str(self._bundle))
        return ClientFiles(str(self._bundle), str(self._device.certificate), str(self._device.key))


@contextmanager
def certified_nodes(
    folder: str | None, replicas: int = 1, shards: int = 0, settings: Mapping[str, str] = QUIET
) -> Iterator[Certified]:
    """Run one node of so many shards (0: one a core), or a set of nodes of one shard each with
    `settings`, whose links are by mutual TLS, and which refuse what the CA revokes.
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
        nodes = NodeSet(place, replicas, 1, settings=settings)
        with begun(Path(name) / "ca", nodes.system) as ca:
            for member in nodes.members:
                one = _issue(ca, member.node)
                own = {
                    "WEIR__TLS__CERTIFICATE": str(one.certificate),
                    "WEIR__TLS__KEY": str(one.key),
                    "WEIR__TLS__TRUST": str(ca.bundle),
                    "WEIR__TLS__REVOKED": str(ca.folder / REVOKED),
                    "WEIR__LINKS__TLS": "require",
                }
                nodes.let(member.node, own)
            device = _device(ca)
        stack.callback(nodes.stop)
        nodes.start(Patient())
        yield Certified(nodes, ca.bundle, device)


def _issue(ca: Authority, number: int) -> Issued:
    return ca.issue(node(ca.system, number), _HOSTS, _DAYS)


def _device(ca: Authority) -> Issued:
    return ca.issue(parse_identity(f"weir://{ca.system:x}/{ca.set}/device/1/0"), (), _DAYS)
