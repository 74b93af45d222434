"""A disk that fills up, for tests of jobs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


class SmallDisk:
    """A folder of 1 MiB, most of it taken by a file that can be removed; where this user may not
    mount one, a folder that takes nothing until it is freed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "weir-test", str(folder)]
        self.mounted = subprocess.run(mount, check=False, timeout=10).returncode == 0

    def fill(self, left: int) -> None:
        """Leave room for so many bytes."""
        if self.mounted:
            room = shutil.disk_usage(self.folder).free
            (self.folder / "ballast").write_bytes(bytes(max(room - left, 0)))
        else:
            self.folder.chmod(0o555)

    def free(self) -> None:
        self.folder.chmod(0o755)
        (self.folder / "ballast").unlink(missing_ok=True)

    def unmount(self) -> None:
        if self.mounted:
            subprocess.run(["umount", str(self.folder)], check=True, timeout=10)
