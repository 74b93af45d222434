"""A machine with a power cord: a Linux kernel in a process, with a disk and a port of its own."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from weir.errors import WeirError
from weir.server.interpreter import environment
from weir_lab.bench.harness.network import Network

KERNEL = "linux.uml"
_MEMORY_MIB = 256
_DISK_MIB = 512
#: The root of the machine is this one's, read only; its own disk is mounted here.
DISK = "/mnt/disk"

_INIT = """#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t tmpfs tmpfs /mnt && mkdir {disk}
mount -t ext4 /dev/ubda {disk} || exit 1
ip link set lo up
ip addr add {address} dev vec0
ip link set vec0 up
cd {disk}
{exports}
exec {command}
"""


class MachineFailed(WeirError):
    """A machine did not come up, or ended by itself; the message holds what it said last."""


class Machine:
    """One kernel: `boot` it, `cut` its power, and boot it from what its disk holds."""

    def __init__(
        self, name: str, folder: Path, network: Network, address: str, command: Sequence[str],
        up: str,
    ) -> None:  # fmt: skip
        """Make an empty disk in `folder`. `command` is all that the machine runs; it says `up` once
        clients may connect.
        """
        self.name = name
        self.up = up
        self._folder = folder
        self._console = folder / f"{name}.console"
        self._disk = folder / f"{name}.img"
        self._shim = shim(folder)
        self._tap = network.tap()
        self._init = folder / f"{name}.init"
        self._init.write_text(_init(network.with_prefix(address), command), encoding="utf-8")
        self._init.chmod(0o755)
        self._console.touch()
        with self._disk.open("wb") as disk:
            disk.truncate(_DISK_MIB << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", self._disk], check=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._before = 0

    @property
    def running(self) -> bool:
        """Whether it has power and its kernel is alive."""
        return self._process is not None and self._process.poll() is None

    def boot(self) -> None:
        """Give it power; it says on its console how far it is."""
        self._before = self._console.stat().st_size
        with self._console.open("ab") as console:
            self._process = subprocess.Popen(
                [
                    KERNEL, f"mem={_MEMORY_MIB}M", f"umid={self.name}", f"uml_dir={self._folder}/",
                    "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro",
                    "init=/usr/bin/setpriv", f"ubda={self._disk}", "con=null", "con0=null,fd:1",
                    "quiet", f"vec0:transport=tap,ifname={self._tap},depth=64,gro=1",
                    # A user that is not root outside has no setuid programs of root inside, as
                    # `mount` is one: they would lose what they are.
                    "--", "--no-new-privs", str(self._init),
                ],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                env={**os.environ, "LD_PRELOAD": str(self._shim)},
                # A group of its own: the kernel is several processes, and all lose power at once.
                start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """Take the power away; see `cut`, which also waits."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def bury(self) -> None:
        """Return when nothing is left of a machine that was killed."""
        process, self._process = self._process, None
        if process is None:
            return
        process.wait()
        # Its other processes are this one's to bury, since this one is the first of its namespace.
        while True:
            try:
                os.waitpid(-process.pid, 0)
            except ChildProcessError:
                return

    def check(self) -> None:
        """Raise `MachineFailed` if it has ended by itself."""
        if not self.running:
            raise MachineFailed(f"{self.name} ended by itself:\n{self.last_words()}")

    def said(self, word: str) -> bool:
        """Whether the console has shown this since the last boot. Raises `MachineFailed`."""
        with self._console.open("rb") as console:
            console.seek(self._before)
            if word.encode() in console.read():
                return True
        self.check()
        return False

    def last_words(self, lines: int = 20) -> str:
        """Return the last lines of the console, without where the kernel was when it gave up."""
        shown = self._console.read_text(encoding="utf-8", errors="replace").splitlines()
        said = [line for line in shown if not line.startswith((" [<", " 0", " 6", "Stack", "Call"))]
        return "\n".join(said[-lines:])


def cut(machines: Sequence[Machine]) -> None:
    """Take the power of all these away at the same moment; return when nothing is left of them."""
    for one in machines:
        one.kill()
    for one in machines:
        one.bury()


def shim(folder: Path) -> Path:
    """Return what lets the kernel run on any CPU, see xstate_shim.c; compile it the first time."""
    library = folder / "xstate_shim.so"
    if not library.exists():
        source = str(files(__package__) / "xstate_shim.c")
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def _init(address: str, command: Sequence[str]) -> str:
    given = {**environment(), "PYTHONDONTWRITEBYTECODE": "1"}
    exports = [
        f"export {name}={shlex.quote(value)}"
        for name, value in given.items()
        if name.startswith("PYTHON")
    ]
    return _INIT.format(
        disk=DISK, address=address, exports="\n".join(exports), command=shlex.join(command)
    )
