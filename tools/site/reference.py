"""Reference pages as Markdown, made of the code: API, commands, settings, errors, metrics."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import weir
from weir import errors, sync
from weir.cli.main import whole_command
from weir.model import limits
from weir.server import config
from weir.testing.nodes import free_ports, running_node

_WIDTH = 88
#: Methods of data that say nothing about weir.
_OF_DATA = frozenset({"count", "index", "mro"})


# The API.


def api() -> str:
    """Every public name of `weir`, and every class that a method of those returns."""
    shown: dict[str, object] = {}
    for name in weir.__all__:
        if not name.startswith("__"):
            shown[name] = getattr(weir, name)
    classes = list(_reachable(shown.values()))
    parts = [
        "`weir.sync` has the same client without asyncio. `weir.errors` is on a page of its own: "
        "[Errors](errors.md).\n"
    ]
    for name, what in shown.items():
        if isinstance(what, ModuleType):
            if what is not errors:
                parts += _module(name, what)
        elif inspect.isclass(what):
            parts += _class(f"weir.{name}", what)
        else:
            parts += _function(f"weir.{name}", what, 2)
    parts.append("## What methods return\n")
    for one in sorted(classes, key=lambda one: one.__name__):
        if one not in shown.values():
            parts += _class(one.__name__, one, 3)
    return "\n".join(parts)


def _module(name: str, module: ModuleType) -> Iterator[str]:
    yield f"## weir.{name}\n\n{_text(module)}\n"
    for one in getattr(module, "__all__", ()):
        what = getattr(module, one)
        if inspect.isclass(what):
            yield from _class(f"weir.{name}.{one}", what, 3)
        elif callable(what):
            yield from _function(f"weir.{name}.{one}", what, 3)
    if module is sync:
        for one in _reachable([module.connect]):
            yield from _class(f"weir.sync.{one.__name__}", one, 3)


def _class(name: str, one: type, level: int = 2) -> Iterator[str]:
    yield f"{'#' * level} {name}\n\n{_text(one)}\n"
    if _constructed(one):
        yield _signature(name, one)
    for attribute, kind in _fields(one):
        yield f"* `{attribute}`: `{kind}`"
    yield ""
    for member, what in _members(one):
        if isinstance(what, property):
            yield f"{'#' * (level + 1)} {one.__name__}.{member}\n\n{_text(what)}\n"
        else:
            yield from _function(f"{one.__name__}.{member}", what, level + 1)


def _constructed(one: type) -> bool:
    """Whether users make such an object; what a method returns they do not."""
    return one.__init__ is not object.__init__ and one in {
        getattr(weir, name) for name in weir.__all__ if not name.startswith("__")
    }


def _fields(one: type) -> Iterator[tuple[str, str]]:
    for name, kind in inspect.get_annotations(one).items():
        if not name.startswith("_") and "ClassVar" not in str(kind):
            yield name, _kind(kind)


def _members(one: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties of a class and of its bases in weir, those of data left out."""
    seen: set[str] = set()
    for base in one.__mro__:
        if not base.__module__.startswith("weir"):
            continue
        for name, what in vars(base).items():
            if name.startswith("_") or name in _OF_DATA or name in seen:
                continue
            if isinstance(what, (classmethod, staticmethod)):
                what = what.__func__
            if inspect.isfunction(what) or isinstance(what, property):
                seen.add(name)
                yield name, what


def _function(name: str, what: Any, level: int) -> Iterator[str]:
    yield f"{'#' * level} {name}\n\n{_signature(name, what)}\n{_text(what)}\n"


def _text(what: object) -> str:
    """A docstring as Markdown; a paragraph that is Python is shown as code."""
    parts = []
    for paragraph in (inspect.getdoc(what) or "").split("\n\n"):
        if paragraph.startswith("    ") or not _is_code(paragraph):
            parts.append(paragraph)
        elif parts and parts[-1].endswith("\n```"):
            parts[-1] = f"{parts[-1][:-4]}\n\n{paragraph}\n```"
        else:
            parts.append(f"```python\n{paragraph}\n```")
    return "\n\n".join(parts)


def _is_code(paragraph: str) -> bool:
    if not re.search(r"\(| = ", paragraph):
        return False
    try:
        ast.parse(inspect.cleandoc(paragraph))
    except SyntaxError:
        return False
    return True


def _signature(name: str, what: Any) -> str:
    try:
        found = inspect.signature(what)
    except (TypeError, ValueError):
        return ""
    parameters: list[str] = []
    star = slash = False
    for one in found.parameters.values():
        if one.name in {"self", "cls"} or one.name.startswith("_"):
            continue
        slash = slash or one.kind is one.POSITIONAL_ONLY
        if one.kind is one.KEYWORD_ONLY and not star:
            parameters.append("*")
        star = star or one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        prefix = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        text = prefix + one.name
        if one.annotation is not one.empty:
            text += f": {_kind(one.annotation)}"
        if one.default is not one.empty:
            text += f" = {_default(one.default)}"
        parameters.append(text)
    returns = ""
    if found.return_annotation is not found.empty and not inspect.isclass(what):
        returns = f" -> {_kind(found.return_annotation)}"
    start = "async " if inspect.iscoroutinefunction(what) else ""
    line = f"{start}{name}({', '.join(parameters)}){returns}"
    if len(line) > _WIDTH:
        listed = "".join(f"    {parameter},\n" for parameter in parameters)
        line = f"{start}{name}(\n{listed}){returns}"
    return f"```python\n{line}\n```\n"


def _kind(annotation: object) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:typing|collections\.abc|weir(?:\.\w+)+)\.(?=\w)", "", text)


def _default(value: object) -> str:
    if inspect.isclass(value) or inspect.isfunction(value):
        return value.__name__
    text = repr(value)
    return "..." if "0x" in text or text.startswith("<") else text


def _reachable(start: Any) -> list[type]:
    """Classes of weir that public callables return, and what the methods of those return."""
    found: list[type] = []
    ahead = list(start)
    while ahead:
        what = ahead.pop(0)
        returned = []
        if inspect.isfunction(what):
            returned = _returned(what)
        elif inspect.isclass(what):
            for _, member in _members(what):
                returned += _returned(member.fget if isinstance(member, property) else member)
        for one in returned:
            if one not in found:
                found.append(one)
                ahead.append(one)
    return found


def _returned(function: Any) -> list[type]:
    """The classes of weir that an annotation names."""
    annotation = str(getattr(function, "__annotations__", {}).get("return", ""))
    module = vars(sys.modules[function.__module__])
    named = [module.get(name) for name in re.findall(r"[A-Za-z_]\w*", annotation)]
    return [
        one for one in named
        if inspect.isclass(one) and one.__module__.startswith("weir.")
        and not one.__name__.startswith("_") and not issubclass(one, BaseException)
    ]  # fmt: skip


# Commands.


def commands() -> str:
    """Every verb, with its usage, arguments and options."""
    return "\n".join(_command(whole_command(), "weir", 1))


def _command(command: Any, path: str, level: int) -> Iterator[str]:
    context = command.context_class(command, info_name=path)
    if level > 1:
        yield f"{'#' * min(level, 4)} {path}\n"
        yield _paragraphs(command.help or "")
    subs = getattr(command, "commands", {})
    if not subs:
        usage = command.get_usage(context).removeprefix("Usage: ")
        yield f"\n```text\n{' '.join(usage.split())}\n```\n"
    rows = [record for one in command.params if (record := one.get_help_record(context))]
    rows = [(names, about) for names, about in rows if not names.startswith("--help")]
    if rows:
        yield "| option or argument | meaning |\n| --- | --- |"
        for names, about in rows:
            yield f"| `{_line(names)}` | {_cell(about)} |"
    yield ""
    for name, sub in sorted(subs.items()):
        yield from _command(sub, f"{path} {name}", level + 1)


def _paragraphs(text: str) -> str:
    """Help text as Markdown; what is behind a form feed is not shown, as in a terminal."""
    kept = inspect.cleandoc(text.split("\f")[0])
    return kept.replace("\b\n", "") + "\n"


def _cell(text: str) -> str:
    return _line(text).replace("<", "&lt;")


def _line(text: str) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


# Settings.


def configuration() -> str:
    """Every setting: key, environment variable, default, bounds, meaning."""
    parts = [
        "Each key of the file is also an environment variable: `node.port` is "
        "`WEIR__NODE__PORT`. The later wins: default, file, environment, flag of `weir serve`.\n"
    ]
    section = ""
    for one in config.settings():
        if one.section != section:
            section = one.section
            about = inspect.getdoc(type(getattr(config.Config(), section))) or ""
            parts.append(f"\n## {section}\n\n{about.splitlines()[0]}\n")
            parts.append("| key | default | bounds | meaning |\n| --- | --- | --- | --- |")
        bounds = one.bounds or " or ".join(f"`{choice}`" for choice in one.choices)
        default = f"`{one.default}`" if one.default != "" else "empty"
        unit = f" {one.unit}" if one.unit and not isinstance(one.default, str) else ""
        parts.append(f"| `{one.key}` | {default}{unit} | {bounds} | {_cell(one.about)} |")
    return "\n".join(parts)


# Errors.


def error_classes() -> str:
    """Every error: its number on the wire, whether it is tried again, what it means."""
    refusals = sorted(_kinds(errors.Refused), key=lambda one: one.code)
    others = [one for one in _kinds(errors.WeirError) if not issubclass(one, errors.Refused)]
    parts = [
        "All are in `weir.errors`, and all are `WeirError`.\n",
        "## Refusals\n\nA `Refused` is a numbered answer of the broker. The client first retries "
        "those that are retryable.\n",
        "| code | error | retryable | meaning |\n| --- | --- | --- | --- |",
    ]
    for one in refusals:
        again = "yes" if one.retryable else ""
        parts.append(f"| {one.code} | `{one.__name__}` | {again} | {_cell(_text(one))} |")
    parts += ["\n## Others\n", "| error | meaning |\n| --- | --- |"]
    parts += [f"| `{one.__name__}` | {_cell(_text(one))} |" for one in others]
    return "\n".join(parts)


def _kinds(root: type) -> list[Any]:
    found: list[Any] = []
    for one in vars(errors).values():
        if inspect.isclass(one) and issubclass(one, root) and one not in found:
            found.append(one)
    return found


# Metrics.


def metrics() -> str:
    """Every figure that a node serves, as a node tells them that runs for a moment; and those of
    streaming queries.
    """
    from weir.spark.monitoring.page import families
    from weir.spark.monitoring.readers import Told

    rows: dict[str, tuple[str, str]] = {}
    kinds: dict[str, str] = {}
    for line in _served().splitlines():
        if line.startswith("# HELP "):
            _, _, name, about = line.split(" ", 3)
            rows[name] = ("", about)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ", 3)
            kinds[name] = kind
    parts = [
        "A node serves these at `/metrics` in the text format of Prometheus, with "
        "`--metrics HOST:PORT`. [Operations](../OPERATIONS.md#logs-and-metrics) tells what to "
        "watch first.\n",
        "| metric | type | meaning |\n| --- | --- | --- |",
    ]
    for name, (_, about) in sorted(rows.items()):
        parts.append(f"| `{name}` | {kinds.get(name, '')} | {_cell(about)} |")
    parts += [
        "\n## Streaming queries\n",
        "`weir.spark.watch` serves these beside a driver of Spark "
        "([Watching queries](../how-to/spark.md#watching-queries)).\n",
        "| metric | type | meaning |\n| --- | --- | --- |",
    ]
    for family in families([], Told({}, {}), 0):
        parts.append(f"| `{family.name}` | {family.kind} | {_cell(family.about)} |")
    return "\n".join(parts)


def _served() -> str:
    port = free_ports(1)[0]
    with (
        tempfile.TemporaryDirectory() as folder,
        running_node(Path(folder) / "node", listen=f"127.0.0.1:{port}") as node,
        sync.connect(node.url) as w,
    ):
        w.create_topic("flights")
        w.publish("flights", b"x")
        w.seek_cluster("flights", "billing", "earliest", create=True)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return str(answer.read().decode())


# Options of Spark.


def spark_options() -> str:
    """Every option of `format("weir")`, as the modules that read them list them."""
    from weir.spark import options
    from weir.spark.sink import options as sink

    return "\n".join([
        "## To read\n", *_options(options), "\n## To write\n", *_options(sink)
    ])  # fmt: skip


def _options(module: ModuleType) -> Iterator[str]:
    _, _, listed = (module.__doc__ or "").partition("\n\n")
    rows: list[list[str]] = []
    for line in listed.splitlines():
        if line[:1].strip():
            rows.append(line.split(None, 1))
        elif line.strip():
            rows[-1][1] += " " + line.strip()
    yield "| option | meaning |\n| --- | --- |"
    for name, about in rows:
        yield f"| `{name}` | {_cell(about)} |"


# Limits.


def bounds() -> str:
    """Every upper bound, as `weir.model.limits` groups them."""
    source = inspect.getsource(limits)
    parts: list[str] = []
    for block in source.split("\n\n"):
        names = [
            node.targets[0].id for node in ast.parse(block).body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        ]  # fmt: skip
        if not names or "KIB" in names:
            continue
        first = block.splitlines()[0]
        title = re.sub(r"\s*\(DESIGN[^)]*\)", "", first.lstrip("#: ")) if first[0] == "#" else ""
        parts.append(f"\n## {re.split(r'[.:] |[.:]$', title)[0] or 'Others'}\n")
        parts.append("| limit | value | |\n| --- | --- | --- |")
        parts += _rows(block, first if title else "")
    return "\n".join(parts)


def _rows(block: str, title: str) -> Iterator[str]:
    about: list[str] = []
    for line in block.splitlines():
        if line.startswith("#"):
            if line != title:
                about.append(line.lstrip("#: "))
        elif found := re.match(r"([A-Z_]+) =", line):
            value = _quantity(found[1], getattr(limits, found[1]))
            yield f"| `{found[1]}` | {value} | {_cell(' '.join(about))} |"
            about = []


def _quantity(name: str, value: float) -> str:
    if "BYTES" in name:
        for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if value >= size and value % size == 0:
                return f"{value // size} {unit}"
        return f"{value:,} bytes"
    if name.endswith("_MS") or "_MS_" in name:
        return f"{value / 1000:,g} s"
    return f"{value:,g} s" if "SECONDS" in name and "PER" not in name else f"{value:,}"


PAGES: dict[str, Callable[[], str]] = {
    "api": api,
    "commands": commands,
    "configuration": configuration,
    "errors": error_classes,
    "metrics": metrics,
    "spark": spark_options,
    "limits": bounds,
}
