"""The configuration file that says everything: each setting with its meaning and default."""

from __future__ import annotations

import inspect
import json
import textwrap

import msgspec

from weir.server.config.sections import Config, settings

_HEAD = """\
# weir.toml: the settings of a node. Every one stands here with its default, as a comment.
# Check a file with `weir config check FILE`; `weir config show` tells where each value comes from.
# The environment wins over this file (WEIR__NODE__PORT=7000), and a flag over both (--port 7000).
# Text may carry a unit: "64MiB", "1GiB", "30s", "7d". A change takes effect at the next start.
"""


def sample() -> str:
    """Return the commented file."""
    parts = [_HEAD]
    about = {field.name: field.type for field in msgspec.structs.fields(Config)}
    section = ""
    for setting in settings():
        if setting.section != section:
            section = setting.section
            words = (inspect.getdoc(about[section]) or "").splitlines()[0]
            parts.append(f"\n# {words}\n[{section}]\n")
        bounds = f" ({setting.bounds})" if setting.bounds else ""
        comment = textwrap.wrap(setting.about + bounds, 96)
        parts += [f"# {line}\n" for line in comment]
        # A JSON text, number, list or truth value is a TOML one too.
        parts.append(f"#{setting.name} = {json.dumps(setting.default)}\n")
    return "".join(parts)
