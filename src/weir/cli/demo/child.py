"""The outside of a process of the demo: started, listened to, and ended by its handle."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path
from types import TracebackType

import msgspec

from weir.bench.children import environment, python
from weir.cli.demo.worker import Status
from weir.errors import WeirError

_TERMINATE_SECONDS = 3.0
_END_SECONDS = 10.0


class PartFailed(WeirError):
    """A process of the demo ended before its work was done; the message holds its reason."""


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
                # A group of its own: Ctrl-C reaches only the demo, which then ends all of them,
                # and with it ends whatever the worker has started itself.
                start_new_session=True,
            )
        self._listener = threading.Thread(target=self._listen, name=f"demo-{name}", daemon=True)
        self._listener.start()

    @property
    def done(self) -> bool:
        """Whether it has ended well. Raises `PartFailed` if it has ended otherwise."""
        code = self._process.poll()
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
            raise PartFailed(f"{self.name}: {self._last_words(self._process.poll())}") from None

    def end(self) -> None:
        """End it, if it has not ended, and all that it has started."""
        self._process.terminate()
        try:
            self._process.wait(_TERMINATE_SECONDS)
        except subprocess.TimeoutExpired:
            # Not waited for yet, so its number is still its group's and no other's.
            os.killpg(self._process.pid, signal.SIGKILL)
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
