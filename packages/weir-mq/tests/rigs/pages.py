"""Pages whose commands a test runs: blocks of the console behind `<!-- run -->`."""

from __future__ import annotations

import re
from collections.abc import Iterator

_RUN = re.compile(r"^<!-- run -->\n```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def shown(page: str) -> Iterator[tuple[str, str]]:
    """Yield each command that is run, and what the page shows that it prints."""
    for block in _RUN.findall(page):
        for command in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, printed = command.partition("\n")
            yield line, printed
