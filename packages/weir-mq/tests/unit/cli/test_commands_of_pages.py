"""Every command that README and the pages of docs/ show is one that our command line takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from weir.cli.main import whole_command

ROOT = Path(__file__).parents[5]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")),
         *sorted((ROOT / "docs/how-to").glob("*.md"))]  # fmt: skip
COMMAND = whole_command()


def commands(text: str) -> Iterator[str]:
    """Lines that are typed after a prompt, and what stands in backticks."""
    yield from re.findall(r"^[a-z]?\$ (?:\w+=\S+ )*(weir .*)$", text, re.MULTILINE)
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    yield from (" ".join(found.split()) for found in re.findall(r"`(weir [^`]+)`", prose))


def complaint(line: str) -> str | None:
    """Say what of a command our command line does not know, of each choice that it gives."""
    try:
        words = shlex.split(re.sub(r"\s+#.*| > .*| \|\|? .*|[()\[\]]", "", line))
    except ValueError as error:
        return str(error)
    command = COMMAND
    for at, word in enumerate(words[1:], 1):
        if not (subs := getattr(command, "commands", None)):
            break
        if word.startswith("-"):
            break
        names = word.split("|")
        if unknown := [name for name in names if name not in subs]:
            return f"no verb {' '.join([*words[:at], unknown[0]])}"
        command = subs[names[0]]
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {
        "--help"
    }
    given = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    return next((f"{line}: no option {name}" for name in given if name not in known), None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_is_known(page: Path) -> None:
    found = list(commands(page.read_text()))
    assert [why for line in found if (why := complaint(line))] == []


def test_commands_are_found_and_faults_are_seen() -> None:
    operations = list(commands((ROOT / "docs/OPERATIONS.md").read_text()))
    assert len(operations) > 40
    assert "weir serve --data /var/lib/weir --host a --port 6800 --insecure" in operations
    assert complaint("weir serves") == "no verb weir serves"
    assert complaint("weir topic create flights --partition 3") is not None
    assert complaint("weir topic lists | cut -c 3") == "no verb weir topic lists"
    assert complaint("weir topic list | cut -c 3") is None
    assert complaint("weir topic list || echo -n no") is None
    assert complaint("weir cluster lag TOPIC CLUSTER --json  # all of it") is None
