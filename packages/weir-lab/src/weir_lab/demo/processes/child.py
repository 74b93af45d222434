"""The outside of a process of the demo: started, listened to, and ended by its handle."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType

import msgspec

from weir.errors import WeirError
from weir.server.interpreter import environment, python
from weir_lab.demo.processes.worker import Status

_END_SECONDS = 10.0
_LOOK_SECONDS = 0.01
#: States in /proc of a process that is nothing but an exit code.
_ENDED = ("Z", "X")


class PartFailed(WeirError):
    """A process of the demo ended before its work was done; the message holds its reason."""


class NotEnded(WeirError):
    """A process of the demo is left behind."""


def _living(session: int) -> list[int]:
    """Return the numbers of a session's processes, those that have ended left out."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            # Behind the command, which may hold anything: state, parent, group, session.
            state, _, _, its = place.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue  # it has just ended
        if int(its) == session and state not in _ENDED:
            found.append(int(place.parent.name))
    return found


class Child:
    """A worker process. `status` is what it told last; it ends with the `with` block."""

    def __init__(self, name: str, module: str, task: msgspec.Struct, folder: Path) -> None:
        """Start `module` on its task, in `folder`, where its errors go too."""
        self.name = name
        self.status = Status()
        self._errors = folder / f"{name}.log"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                python(module, msgspec.json.encode(task).decode()),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=folder,
                # Java and Python put what they need for a while where it is removed with the rest.
                env=environment() | {"TMPDIR": str(folder), "SPARK_LOCAL_DIRS": str(folder)},
                # A session of its own: Ctrl-C reaches only the demo, which then ends all of them.
                # What a worker starts stays in its session, in whichever process group it is.
                start_new_session=True,
            )
        self._listener = threading.Thread(target=self._listen, name=f"demo-{name}", daemon=True)
        self._listener.start()

    @property
    def done(self) -> bool:
        """Whether it has ended well. Raises `PartFailed` if it has ended otherwise."""
        code = self._code()
        if code is None:
            return False
        self._listener.join(_END_SECONDS)
        if code:
            raise PartFailed(f"{self.name}: {self.status.error or self._last_words(code)}")
        return True

    def cue(self) -> None:
        """Tell it to go on. Raises `PartFailed` if it is gone."""
        assert self._process.stdin is not None
        try:
            # Past the buffer: what could not be written must not be tried again at the end.
            os.write(self._process.stdin.fileno(), b"\n")
        except BrokenPipeError:
            raise PartFailed(f"{self.name}: {self._last_words(self._code())}") from None

    def end(self) -> None:
        """End it, if it has not ended, and all that it has started, however indirectly.

        None of them has anything to tidy up, and what is killed cannot start anything more: a JVM
        that is asked to end, or that should see that nobody is there, first starts to its end.
        Raises `NotEnded` if one of them is still there after 10 s.
        """
        deadline = time.monotonic() + _END_SECONDS
        while left := _living(self._process.pid):
            if time.monotonic() > deadline:
                raise NotEnded(f"{self.name}: processes {left} do not end: see what holds them")
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_LOOK_SECONDS)
        # Only now: until it is waited for, its number is its session's and no other's.
        self._process.wait(_END_SECONDS)
        self._listener.join(_END_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.end()

    def _code(self) -> int | None:
        """Return its exit code, below 0 for a signal's; None while it runs. It is not reaped."""
        if self._process.returncode is not None:
            return self._process.returncode
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.status = msgspec.json.decode(line, type=Status)

    def _last_words(self, code: int | None) -> str:
        if code is not None and code < 0:
            return f"ended by {signal.Signals(-code).name}"
        lines = self._errors.read_text(encoding="utf-8", errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return said[-1] if said else f"ended with exit code {code}"
