"""Times as people write and read them: retention as in "7d", "10GiB", "forever"; where to begin."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from weir.client.reader.options import Start
    from weir.model.topic import TopicSettings

Retention = Annotated[
    str | None,
    typer.Option(help="Delete messages older than this: `7d`, `12h`, `forever`."),
]
RetentionBytes = Annotated[
    str | None,
    typer.Option(
        help="Delete the oldest messages of a partition above this size: `10GiB`, `none`."
    ),
]
UntilDone = Annotated[
    str | None,
    typer.Option(
        metavar="CLUSTER,...",
        help="Delete messages once these clusters have acked them; `*`: all clusters. Empty: off.",
    ),
]


def clusters_named(text: str | None) -> list[str] | None:
    """Return `--until-done` as the client takes it."""
    return None if text is None else [name for name in text.split(",") if name]


def kept_seconds(text: str | None) -> str | float | None:
    """Return `--retention` as the client takes it."""
    from weir.client.core.retries import seconds

    if text is None or text == "forever":
        return text
    return _number("--retention", text, seconds, "forever")


def kept_bytes(text: str | None) -> int | str | None:
    """Return `--retention-bytes` as the client takes it."""
    from weir.server.config import quantity

    if text is None or text in ("none", "forever"):
        return None if text is None else "forever"
    return round(_number("--retention-bytes", text, lambda size: quantity(size, "B"), "none"))


def shown_retention(settings: TopicSettings) -> str:
    """Return a topic's retention in words."""
    ms, size = settings.retention_ms, settings.retention_bytes
    kept = [duration_of(ms / 1_000) if ms else "forever"]
    if size:
        kept.append(f"{size_of(size)} a partition")
    if names := settings.until_done:
        whom = "every cluster" if names == ("*",) else " and ".join(names)
        kept.append(f"until {whom} {'is' if len(names) == 1 else 'are'} done")
    return ", ".join(kept)


def duration_of(seconds: float) -> str:
    """Return a duration with the largest unit in which it is 1 or more."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g}{unit}"
    return f"{seconds:.3g}s"


def size_of(size: int) -> str:
    """Return a number of bytes with the largest unit in which it is 1 or more."""
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.3g}{unit}"
    return f"{size}B"


def duration(option: str, text: str) -> float:
    """Return what an option says, in seconds; it needs a unit. Raises `typer.BadParameter`."""
    from weir.client.core.retries import seconds

    try:
        return seconds(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _number(option: str, text: str, parse: Callable[[str], float], endless: str) -> float:
    try:
        number = parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
    if number < 0:
        raise typer.BadParameter(f"{text!r} is below 0", param_hint=option)
    if not number:
        raise typer.BadParameter(
            f"0 would keep nothing, or everything: write {endless!r} to keep everything",
            param_hint=option,
        )
    return number


def place(begin: str, option: str = "--from") -> Start | int:
    """Return what an `option` as `--from` means; an offset as a number."""
    from weir.client.reader.options import at
    from weir.errors import BadRequest

    if begin in ("earliest", "latest", "last"):
        return begin
    if begin.isdecimal():
        return int(begin)
    try:
        return at(begin)
    except BadRequest:
        raise typer.BadParameter(
            f"{begin!r}: give earliest, latest, last, an offset from 0 on, or a time as in -1h or "
            "2026-11-22T10:00",
            param_hint=option,
        ) from None
