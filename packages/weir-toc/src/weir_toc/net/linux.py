"""Calls of the kernel that Python 3.11 does not have: namespaces, mounts, programs of BPF."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
from collections.abc import Iterator
from pathlib import Path

CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET = 0x00020000, 0x20000000, 0x40000000
MS_REC, MS_PRIVATE = 1 << 14, 1 << 18
_PR_SET_PDEATHSIG = 1
_BPF_CALLS = {"x86_64": 321, "aarch64": 280}
_BPF_PROG_LOAD, _BPF_OBJ_PIN, _SCHED_CLS = 5, 6, 3
_LIBC = ctypes.CDLL(None, use_errno=True)

#: What `capget` calls the rights that a tree of namespaces takes.
_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}


def missing_rights() -> list[str]:
    """Return the capabilities that this process lacks for building a tree of namespaces."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            held = int(line.split()[1], 16)
            return [name for name, bit in _CAPABILITIES.items() if not held >> bit & 1]
    return [*_CAPABILITIES]


def unshare(flags: int) -> None:
    """Give this process namespaces of its own. Raises OSError."""
    _checked(_LIBC.unshare(flags), "unshare")


def mount(source: str, target: str | Path, kind: str | None, flags: int = 0) -> None:
    """Mount a file system, or change how mounts spread if `kind` is None. Raises OSError."""
    name = kind.encode() if kind is not None else None
    done = _LIBC.mount(source.encode(), str(target).encode(), name, ctypes.c_ulong(flags), None)
    _checked(done, f"mount {target}")


def unmount(target: Path) -> None:
    """Take a mount away. Raises OSError."""
    _checked(_LIBC.umount2(str(target).encode(), 0), f"umount {target}")


def end_with_parent(signal: int) -> None:
    """Let the kernel send this process a signal when the thread that made it ends."""
    _checked(_LIBC.prctl(_PR_SET_PDEATHSIG, signal, 0, 0, 0), "prctl")


@contextlib.contextmanager
def inside(namespace: Path) -> Iterator[None]:
    """Run the block in the network namespace that is mounted at a path."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    other = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _checked(_LIBC.setns(other, CLONE_NEWNET), f"setns {namespace}")
        try:
            yield
        finally:
            _checked(_LIBC.setns(own, CLONE_NEWNET), "setns")
    finally:
        os.close(other)
        os.close(own)


def pin_loss(share: float, path: Path) -> None:
    """Load a classifier that drops a share of packets, from 0 to 1, and pin it. Raises OSError.

    It drops one if a random number of 32 bits lies below the share. A burst that leaves in one
    piece is one packet.
    """
    below = min(int(share * (1 << 32)), (1 << 32) - 1)
    program = b"".join(
        (
            _instruction(0x85, 7),  # r0 = a random number
            _instruction(0xA6, below, 2),  # drop it if that is less
            _instruction(0xB7, 0),
            _instruction(0x95),  # pass
            _instruction(0xB7, 2),
            _instruction(0x95),  # drop
        )
    )
    code, licence = ctypes.create_string_buffer(program), ctypes.create_string_buffer(b"GPL")
    count = len(program) // 8
    loaded = struct.pack("=IIQQ", _SCHED_CLS, count, ctypes.addressof(code),
                         ctypes.addressof(licence))  # fmt: skip
    fd = _bpf(_BPF_PROG_LOAD, loaded, "load a program for tc")
    try:
        name = ctypes.create_string_buffer(str(path).encode())
        _bpf(_BPF_OBJ_PIN, struct.pack("=QI", ctypes.addressof(name), fd), f"pin {path}")
    finally:
        os.close(fd)


def _instruction(code: int, immediate: int = 0, jump: int = 0) -> bytes:
    """One instruction on register 0."""
    return struct.pack("=BBhI", code, 0, jump, immediate)


def _bpf(command: int, attributes: bytes, what: str) -> int:
    number = _BPF_CALLS.get(platform.machine())
    if number is None:
        raise OSError(f"{what}: not known how on {platform.machine()}")
    data = ctypes.create_string_buffer(attributes.ljust(120, b"\0"), 120)
    return _checked(_LIBC.syscall(number, command, data, 120), what)


def _checked(done: int, what: str) -> int:
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return done
