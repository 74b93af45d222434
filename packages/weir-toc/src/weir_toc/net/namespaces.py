"""Builds a tree of network namespaces inside namespaces of its own, so nothing else is touched.

The process that builds is the first one of a namespace of processes, with mounts and a network that
are private. When it ends, the kernel ends all that runs in the tree and takes it apart.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from weir_toc.errors import TocError
from weir_toc.net import linux
from weir_toc.net.tree import Node, Tree

#: Where `ip` keeps namespaces, and where programs of BPF are pinned.
NAMESPACES, PINS = Path("/run/netns"), Path("/sys/fs/bpf")
#: Flows are spread by ports, and packets of hosts are forwarded whichever way they came. A switch
#: does not forward to a port without a carrier.
_SETTINGS = {
    "ip_forward": "1",
    "fib_multipath_hash_policy": "1",
    "conf/all/rp_filter": "0",
    "conf/default/rp_filter": "0",
    "conf/all/send_redirects": "0",
    "conf/default/send_redirects": "0",
    "conf/all/ignore_routes_with_linkdown": "1",
    "conf/default/ignore_routes_with_linkdown": "1",
}
_COMMAND_SECONDS = 60.0


def check_needs() -> None:
    """Raise TocError with what this machine or this user lacks for a tree of namespaces."""
    if not Path("/proc/self/ns/net").exists():
        raise TocError("net up: this system has no network namespaces; it takes Linux")
    lacks = linux.missing_rights()
    if lacks:
        raise TocError(f"net up: {' and '.join(lacks)} are missing: run it as root")
    if shutil.which("ip") is None:
        raise TocError("net up: the command `ip` is missing: install iproute2")


def enter() -> None:
    """Give this process a network, mounts and namespaces of its own. Raises TocError.

    It must be the first one of a namespace of processes.
    """
    try:
        linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWNET)
        linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
        linux.mount("proc", "/proc", "proc")
        linux.mount("namespaces", NAMESPACES, "tmpfs")
    except OSError as error:
        raise TocError(f"net up: the kernel refuses private namespaces: {error}") from error


def build(tree: Tree, loss: float = 0.0) -> None:
    """Make all namespaces, links, addresses and routes. Raises TocError with what is missing.

    `loss` is the share of packets that each device loses as it sends, from 0 to 1.
    """
    for name in tree.nodes:
        _run("ip", "netns", "add", name)
        with linux.inside(NAMESPACES / name):
            _set_up_network()
    _set_up_network()
    _batch(tree.controller_lines())
    _batch(tree.link_lines())
    if loss:
        _pin(loss)
    for node in tree.nodes.values():
        with linux.inside(NAMESPACES / node.name):
            _batch(tree.node_lines(node))
            _make_fifo(tree, node)
            for port in tree.ports[node.name] if loss else ():
                _run("tc", "qdisc", "add", "dev", port.device, "clsact")
                _run("tc", "filter", "add", "dev", port.device, "egress", "bpf", "da", "pinned",
                     str(PINS / "loss"))  # fmt: skip


def _pin(loss: float) -> None:
    if shutil.which("tc") is None:
        raise TocError("--loss: the command `tc` is missing: install iproute2")
    try:
        linux.mount("bpf", PINS, "bpf")
        linux.pin_loss(loss, PINS / "loss")
    except OSError as error:
        raise TocError(f"--loss: this kernel has no BPF (BPF_SYSCALL, NET_CLS_BPF): {error}") from (
            error
        )


def _set_up_network() -> None:
    """Set what applies to all devices of the namespace of this moment."""
    for name, value in _SETTINGS.items():
        with contextlib.suppress(FileNotFoundError):  # of a kernel that cannot do this
            Path("/proc/sys/net/ipv4", name).write_text(value)
    for name in ("all", "default"):
        with contextlib.suppress(FileNotFoundError):
            Path("/proc/sys/net/ipv6/conf", name, "disable_ipv6").write_text("1")


def _make_fifo(tree: Tree, node: Node) -> None:
    """Let one processor take all that comes by a device: a sender may move to another one.

    Else a packet may be taken before one that was sent earlier from another processor.
    """
    # Devices of a namespace are seen by a sysfs that is mounted in it.
    place = NAMESPACES / ".sys"
    place.mkdir(exist_ok=True)
    linux.mount("sysfs", place, "sysfs")
    try:
        for device in ("lo", *(port.device for port in tree.ports[node.name])):
            path = place / "class" / "net" / device / "queues" / "rx-0" / "rps_cpus"
            with contextlib.suppress(FileNotFoundError):  # a kernel for one processor
                path.write_text("1")
    finally:
        linux.unmount(place)


def _batch(lines: Iterable[str]) -> None:
    _run("ip", "-batch", "-", stdin="\n".join(lines) + "\n")


def _run(*words: str, stdin: str = "") -> None:
    done = subprocess.run(words, input=stdin, capture_output=True, text=True, check=False,
                          timeout=_COMMAND_SECONDS)  # fmt: skip
    if done.returncode:
        why = " ".join(done.stderr.split())[:500]
        kind = " (is the kernel without VETH?)" if "nknown device type" in why else ""
        raise TocError(f"`{' '.join(words)}` failed{kind}: {why}")
