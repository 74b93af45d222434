"""Settings from a TOML file, the environment and flags: the later wins, and every one says whence.

Everything that is wrong is found at once, and each problem names its place.
"""

from __future__ import annotations

import difflib
import inspect
import json
import re
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from weir.server.config import BadConfig, Config, Setting, contradictions, quantity, settings

#: What every environment variable of a setting begins with.
PREFIX = "WEIR__"
#: How the commented file begins.
_HEAD = """\
# weir.toml: the settings of a node. Every one stands here with its default, as a comment.
# Check a file with `weir config check FILE`; `weir config show` tells where each value comes from.
# The environment wins over this file (WEIR__NODE__PORT=7000), and a flag over both (--port 7000).
# Text may carry a unit: "64MiB", "1GiB", "30s", "7d". A change takes effect at the next start.
"""

_HEADING = re.compile(r"\s*\[\s*([\w.-]+)\s*\]")
_KEY = re.compile(r"\s*([\w.-]+)\s*=")
_TOML_PLACE = re.compile(r" \(at line (\d+), column (\d+)\)$")
_TRUE_FALSE = {"true": True, "false": False}


class Resolved(msgspec.Struct, frozen=True):
    """The settings, and by key (`node.port`) where each comes from."""

    config: Config
    origins: Mapping[str, str]


class _Gathered(msgspec.Struct):
    """What the sources gave so far."""

    known: dict[str, Setting]
    values: dict[str, Any] = msgspec.field(default_factory=dict)
    origins: dict[str, str] = msgspec.field(default_factory=dict)
    problems: list[str] = msgspec.field(default_factory=list)
    #: Settings whose values are not known, for what was given is wrong.
    bad: set[str] = msgspec.field(default_factory=set)

    def take(self, key: str, value: object, origin: str) -> None:
        """Take one value, or the problem with it."""
        setting = self.known.get(key)
        if setting is None:
            self.problems.append(f"{origin}: no setting {key!r}{_meant(key, self.known)}")
            return
        try:
            value = _fitted(setting, value)
        except ValueError as error:
            self.problems.append(f"{origin}: {key} {error}")
            self.bad.add(key)
            return
        if problem := setting.problem(value):
            self.problems.append(f"{origin}: {problem}")
            self.bad.add(key)
            return
        self.values[key], self.origins[key] = value, origin


def resolve(
    path: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, tuple[str, Any]] | None = None,
) -> Resolved:
    """Return the settings of a file, under those of the environment, under those of flags.

    `flags` maps keys to (flag as it is typed, value). Raises `BadConfig` with all problems.
    """
    gathered = _Gathered({setting.key: setting for setting in settings()})
    if path is not None:
        _take_file(gathered, Path(path))
    for name, value in sorted((environment or {}).items()):
        if name.startswith(PREFIX):
            key = name.removeprefix(PREFIX).lower().replace("__", ".", 1)
            gathered.take(key, value, name)
        elif meant := _with_one_stroke(name, gathered.known):
            gathered.problems.append(f"{name}: did you mean {meant}, with two strokes each?")
    for key, (flag, value) in (flags or {}).items():
        gathered.take(key, value, flag)
    config = _built(gathered.values)
    for key, problem in contradictions(config, gathered.bad):
        origin = gathered.origins.get(key, str(path) if path else "")
        gathered.problems.append(f"{origin}: {problem}" if origin else problem)
    if gathered.problems:
        raise BadConfig(gathered.problems)
    return Resolved(config, {key: gathered.origins.get(key, "default") for key in gathered.known})


def load(path: str | Path | None) -> Config:
    """Read a configuration file; None gives the defaults. Raises `BadConfig`."""
    return resolve(path).config


def _take_file(into: _Gathered, path: Path) -> None:
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8-sig")  # editors of some systems begin with a mark of the encoding
        data = tomllib.loads(text)
    except OSError as error:
        raise BadConfig([f"{path}: {error.strerror}"]) from None
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise BadConfig(
            [f"{path}:{line}: byte 0x{raw[error.start]:02x} is not UTF-8: save the file as UTF-8"]
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise BadConfig([_syntax(path, str(error), text)]) from None
    lines = dict(_lines(text))
    sections = {setting.section for setting in into.known.values()}
    for name, section in data.items():
        if name not in sections:
            origin = _place(path, lines.get(name))
            into.problems.append(f"{origin}: no section [{name}]{_meant(name, sections)}")
        elif not isinstance(section, dict):
            origin = _place(path, lines.get(name))
            into.problems.append(f"{origin}: {name} is a section: write [{name}] on its own line")
        else:
            for key, value in section.items():
                full = f"{name}.{key}"
                into.take(full, value, _place(path, lines.get(full)))


def _syntax(path: Path, says: str, text: str) -> str:
    """Return what the parser says, with the line in front."""
    place = _TOML_PLACE.search(says)
    line, column = (
        (int(place[1]), int(place[2])) if place else (max(len(text.splitlines()), 1), None)
    )
    says = says[: place.start()] if place else says
    return f"{path}:{line}: {says[:1].lower()}{says[1:]}" + (f", at column {column}" * bool(column))


def _with_one_stroke(name: str, known: Mapping[str, Setting]) -> str:
    """Return the variable that one looks like which nobody reads, as WEIR_NODE_PORT."""
    variables = {
        setting.variable.replace("__", "_"): setting.variable for setting in known.values()
    }
    return variables.get(name, "") if name not in variables.values() else ""


def _place(path: Path, line: int | None) -> str:
    return f"{path}:{line}" if line else str(path)


def _lines(text: str) -> Iterator[tuple[str, int]]:
    """Yield names of sections and keys with the numbers of their lines, as far as they are plain.

    The parser of the standard library tells none; a name that is quoted goes without a line.
    """
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if found := _HEADING.match(line):
            section = found[1] + "."
            yield found[1], number
        elif found := _KEY.match(line):
            yield section + found[1], number


def _fitted(setting: Setting, value: object) -> object:
    """Return a value as the setting's type has it, where it came as text. Raises `ValueError`."""
    kind = type(setting.default)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, str) or kind is str:
        return value
    if kind is bool:
        if value.lower() not in _TRUE_FALSE:
            raise ValueError(f"is {value!r}: write true or false")
        return _TRUE_FALSE[value.lower()]
    if kind not in (int, float):
        return [part for part in value.split(",") if part]
    number = quantity(value, setting.unit)
    if kind is int:
        if number != int(number):
            raise ValueError(f"is {value!r}: that is no whole number of {setting.unit or 'ones'}")
        return int(number)
    return number


def _meant(name: str, known: Iterable[str]) -> str:
    """Return a question after what was probably meant, or nothing."""
    # Short names are alike by chance, so what follows the section decides.
    near = difflib.get_close_matches(name, [*known], n=1, cutoff=0.7)
    return f": did you mean {near[0]}?" if near else ""


def _built(values: Mapping[str, Any]) -> Config:
    sections: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    return msgspec.convert(sections, Config)


def sample() -> str:
    """Return a commented file of all settings: each with its meaning and default."""
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
