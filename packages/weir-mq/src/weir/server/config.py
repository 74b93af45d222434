"""The node's settings: what there is, what each means, its unit, bounds and default.

A plain number is in the unit that the name ends in; text may carry its own, as in "64MiB" or "7d".
`weir.server.config_sources` reads them from a file, the environment and flags, and writes the
commented file. A new setting is one line in a section here: both take it up by themselves.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from weir.errors import WeirError
from weir.host.accept_queue import ConnectionLimits
from weir.model.limits import (
    ACCEPTS_PER_SECOND_DEFAULT,
    BATCH_BYTES_MAX,
    BUDGET_BYTES_DEFAULT,
    CACHE_BYTES_DEFAULT,
    CLIENT_FRAME_BYTES_MAX,
    CONNECTIONS_MAX,
    CUTOFF_SECONDS_DEFAULT,
    DEVICE_IN_HAND_DEFAULT,
    DEVICE_IN_HAND_MAX,
    FRAME_SECONDS,
    IDLE_SECONDS_DEFAULT,
    LOGS_MAX,
    MIB,
    SEGMENT_BYTES_DEFAULT,
    STALE_SECONDS_DEFAULT,
)
from weir.tls.files import ServerFiles

_SIZES: dict[str, float] = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_MIB = 1 << 20
#: Powers of a thousand, as disks are sold.
_SIZES |= {"kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_TEXT = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*([A-Za-z]*)")
DEFAULT_PORT = 6800
_PORT_MAX = 65_535
#: A server that listens on one of these has the port on every address.
_ALL = frozenset({"0.0.0.0", "::"})

#: The largest frame must fit in a quarter of it, and the largest batch four times in a segment.
_LEAST_MIB = 4 * BATCH_BYTES_MAX // MIB
#: Half of the budget holds at least four of the largest frames.
_LEAST_BUDGET_MIB = -(-2 * 4 * CLIENT_FRAME_BYTES_MAX // MIB) + 1


def quantity(text: str, unit: str) -> float:
    """Return `text` as a number of `unit`s, exactly. A size or a count without a unit of its own is
    one already; a duration needs one.

    Raises `ValueError`, with the units that would do.
    """
    units: dict[str, float] = next((u for u in (_SIZES, _TIMES) if unit in u), {})
    found = _TEXT.fullmatch(text.strip().replace("_", ""))
    if found is None or (found[2] and found[2] not in units):
        like = f"; units: {', '.join(units)}" if units else ""
        raise ValueError(f"is {text!r}: write a number{like}")
    if units is _TIMES and not found[2]:
        raise ValueError(
            f"is {text!r}, which has no unit: write {found[1]}s, {found[1]}m or {found[1]}h "
            "(seconds, minutes, hours)"
        )
    number = float(found[1])
    return number * units[found[2]] / units[unit] if found[2] else number


def in_mib(size: int) -> str:
    """Return the whole MiB that hold so many bytes, in words: "1,024 MiB"."""
    return f"{-(-size // _MIB):,} MiB"


class Setting(msgspec.Struct, frozen=True):
    """One setting as the sections declare it. `unit` is "MiB", "s" and the like, or empty."""

    section: str
    name: str
    type: Any
    default: Any
    about: str = ""
    unit: str = ""
    least: float | None = None
    most: float | None = None
    #: The texts that it may be, where it may not be any.
    choices: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name with its section, as in `node.port`."""
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"WEIR__{self.section}__{self.name}".upper()

    @property
    def bounds(self) -> str:
        """The numbers between which a value must lie, as people read them; empty without."""
        if self.least is None or self.most is None:
            return ""
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.least:g} to {_whole(self.most)}{unit}"

    def problem(self, value: Any) -> str:
        """Return what is wrong with a value, or nothing."""
        if wanted := self._other_kind(value):
            return f"{self.key} is {value!r}: write {wanted}"
        if self.bounds and isinstance(value, int | float) and not isinstance(value, bool):
            assert self.least is not None
            assert self.most is not None
            if not self.least <= value <= self.most:
                return f"{self.key} is {value}: it must be {self.bounds}"
        if value == "" and self.default != "":
            return f"{self.key} must not be empty: leave it out for {self.default!r}"
        try:
            msgspec.convert(value, self.type)
        except msgspec.ValidationError as error:
            return f"{self.key} is {value!r}: {str(error)[:1].lower()}{str(error)[1:]}"
        return ""

    def _other_kind(self, value: Any) -> str:
        """Return what to write where a value is not of the setting's kind, or no choice of it."""
        if self.choices:
            return "" if value in self.choices else " or ".join(self.choices)
        kind = type(self.default)
        if kind is str and not isinstance(value, str):
            return "it as text, in quotes"
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if kind in (int, float) and not number:
            return "a number"
        if kind is int and not isinstance(value, int):
            return f"a whole number of {self.unit}" if self.unit else "a whole number"
        return ""


def _whole(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


class BadConfig(WeirError):
    """The configuration cannot be used; `problems` says where and why, one sentence each."""

    def __init__(self, problems: Sequence[str]) -> None:
        """Take one sentence for each problem."""
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


class NodeConfig(msgspec.Struct, frozen=True):
    """Where the node keeps its data and listens for clients and devices."""

    data: Annotated[str, Meta(min_length=1, description="The data folder.")] = "./weir-data"
    host: Annotated[
        str, Meta(min_length=1, description="The address or name to listen on; 0.0.0.0 for all.")
    ] = "127.0.0.1"
    port: Annotated[
        int, Meta(ge=0, le=65_535, description="The port of both dialects; 0 takes a free one.")
    ] = DEFAULT_PORT
    advertise: Annotated[
        str,
        Meta(description="HOST:PORT where other nodes reach this one; empty for host and port."),
    ] = ""
    shards: Annotated[
        int,
        Meta(
            ge=0,
            le=LOGS_MAX,
            description="Processes that share the logs; 0 for one per core. May change at a start.",
        ),
    ] = 0
    logs: Annotated[
        int,
        Meta(
            ge=0,
            le=LOGS_MAX,
            description="Numbered logs, fixed at creation; 0 for one per core, at least 2.",
        ),
    ] = 0
    hang_seconds: Annotated[
        float,
        Meta(
            ge=3,
            le=3_600,
            description="A shard that does not report for this long is killed and restarted.",
            extra={"unit": "s"},
        ),
    ] = 10.0


class MemoryConfig(msgspec.Struct, frozen=True):
    """How much memory a shard may use."""

    budget_mib: Annotated[
        int,
        Meta(
            ge=_LEAST_BUDGET_MIB,
            le=1 << 20,
            description="Memory for messages in transit, both ways. Above it publishes fail. "
            "Partial frames may use up to three quarters as much beside it.",
            extra={"unit": "MiB"},
        ),
    ] = BUDGET_BYTES_DEFAULT // MIB
    cache_mib: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 20,
            description="The log's end, kept in memory for readers that keep up.",
            extra={"unit": "MiB"},
        ),
    ] = CACHE_BYTES_DEFAULT // MIB


class LogConfig(msgspec.Struct, frozen=True):
    """The segments of a log, which are zero-filled files that are used again and again."""

    segment_mib: Annotated[
        int,
        Meta(
            ge=_LEAST_MIB,
            le=4_096,
            description="The size of a segment.",
            extra={"unit": "MiB"},
        ),
    ] = SEGMENT_BYTES_DEFAULT // MIB
    spares: Annotated[int, Meta(ge=0, le=64, description="Segments that are prepared ahead.")] = 2
    position_folder: Annotated[
        str,
        Meta(
            description="Where the durable position of each log is kept, best on another disk; "
            "empty: beside the log."
        ),
    ] = ""


class ConnectionsConfig(msgspec.Struct, frozen=True):
    """How connections are accepted, and how long they may be silent."""

    most: Annotated[
        int, Meta(ge=16, le=1 << 20, description="Connections that may be open at a time.")
    ] = CONNECTIONS_MAX
    accepts_per_second: Annotated[
        int,
        Meta(
            ge=1,
            le=1 << 20,
            description="Connections accepted per second, after a first burst; others wait.",
        ),
    ] = ACCEPTS_PER_SECOND_DEFAULT
    idle_seconds: Annotated[
        float,
        Meta(
            ge=1,
            le=30 * 24 * 3600,
            description="The broker closes connections of devices that are silent this long; a "
            "ping is enough.",
            extra={"unit": "s"},
        ),
    ] = IDLE_SECONDS_DEFAULT
    frame_seconds: Annotated[
        float,
        Meta(
            ge=1,
            le=3_600,
            description="A frame must arrive completely within this time.",
            extra={"unit": "s"},
        ),
    ] = FRAME_SECONDS
    device_in_hand: Annotated[
        int,
        Meta(
            ge=1,
            le=DEVICE_IN_HAND_MAX,
            description="Messages that a device may hold without an ack, unless it asks for more.",
        ),
    ] = DEVICE_IN_HAND_DEFAULT

    def limits(self) -> ConnectionLimits:
        """Return them as the driver takes them."""
        return ConnectionLimits(
            self.most, self.accepts_per_second, self.idle_seconds, self.frame_seconds
        )


class TlsConfig(msgspec.Struct, frozen=True):
    """TLS on the port of all dialects; files are in PEM, and are read again when they change."""

    certificate: Annotated[
        str, Meta(description="The node's certificate with its chain; empty: no TLS.")
    ] = ""
    key: Annotated[str, Meta(description="The certificate's key, without a password.")] = ""
    trust: Annotated[
        str, Meta(description="The bundle of CAs for clients and nodes: ca.pem of `weir cert`.")
    ] = ""
    revoked: Annotated[
        str, Meta(description="Serial numbers that are refused: revoked.txt of `weir cert`.")
    ] = ""
    minimum: Annotated[
        Literal["1.3", "1.2"],
        Meta(description="The oldest TLS of clients: 1.3, or 1.2 for old firmware."),
    ] = "1.3"
    clients: Annotated[
        Literal["ask", "require"],
        Meta(description="Whether each client needs a certificate: require, or ask."),
    ] = "ask"
    plaintext: Annotated[
        Literal["allow", "loopback", "refuse"],
        Meta(description="Connections without TLS: allow all, loopback alone, or refuse all."),
    ] = "allow"

    def files(self) -> ServerFiles | None:
        """Return the files; None without TLS."""
        if not self.certificate:
            return None
        return ServerFiles(self.certificate, self.key, self.trust, self.revoked)


class LinksConfig(msgspec.Struct, frozen=True):
    """How nodes of a set are linked."""

    tls: Annotated[
        Literal["off", "prefer", "require"],
        Meta(description="Mutual TLS between nodes: off, prefer while it is rolled out, require."),
    ] = "off"


class AccessConfig(msgspec.Struct, frozen=True):
    """Secrets of the node, and whether it may serve everybody in a network."""

    key_file: Annotated[
        str,
        Meta(
            description="The file that opens secrets at rest, mode 0600, outside the data folder, "
            "the same on all nodes: `weir access key` makes it; empty: none."
        ),
    ] = ""
    insecure: Annotated[
        bool,
        Meta(
            description="Whether the node may listen beyond loopback while its set is not closed, "
            "so that anyone who reaches it may do everything."
        ),
    ] = False
    stale_seconds: Annotated[
        float,
        Meta(
            ge=1,
            le=3_600,
            description="Without news of the metadata for this long, a shard of a closed set "
            "accepts no session and begins nothing new. The same on all nodes.",
            extra={"unit": "s"},
        ),
    ] = float(STALE_SECONDS_DEFAULT)
    cutoff_seconds: Annotated[
        float,
        Meta(
            ge=1,
            le=86_400,
            description="After this long without news it ends the sessions that it has. The same "
            "on all nodes: `weir user revoke` derives from it when unreached shards stop.",
            extra={"unit": "s"},
        ),
    ] = float(CUTOFF_SECONDS_DEFAULT)


class StopConfig(msgspec.Struct, frozen=True):
    """How a node stops."""

    drain_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=3_600,
            description="How long a graceful stop may take.",
            extra={"unit": "s"},
        ),
    ] = 10.0


class MetricsConfig(msgspec.Struct, frozen=True):
    """Figures for Prometheus, and the health pages /healthz and /readyz."""

    listen: Annotated[
        str,
        Meta(description="HOST:PORT, or empty for none; shard n listens n ports above."),
    ] = ""


class StatusConfig(msgspec.Struct, frozen=True):
    """What the node writes to stderr about itself."""

    format: Annotated[
        Literal["text", "json"], Meta(description="text for people, or json: one object a line.")
    ] = "text"
    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="The lowest level that is logged."),
    ] = "info"


class Config(msgspec.Struct, frozen=True):
    """All settings of a node."""

    node: NodeConfig = NodeConfig()
    memory: MemoryConfig = MemoryConfig()
    log: LogConfig = LogConfig()
    connections: ConnectionsConfig = ConnectionsConfig()
    tls: TlsConfig = TlsConfig()
    links: LinksConfig = LinksConfig()
    access: AccessConfig = AccessConfig()
    stop: StopConfig = StopConfig()
    metrics: MetricsConfig = MetricsConfig()
    status: StatusConfig = StatusConfig()

    def validate(self) -> Config:
        """Raise `BadConfig` with all that is wrong; return the config itself."""
        problems = [
            problem for setting in settings() if (problem := setting.problem(self.value(setting)))
        ]
        problems = problems or [problem for _, problem in contradictions(self)]
        if problems:
            raise BadConfig(problems)
        return self

    def value(self, setting: Setting) -> Any:
        """Return the value of a setting."""
        return getattr(getattr(self, setting.section), setting.name)


def settings() -> Iterator[Setting]:
    """Yield every setting that there is, section by section."""
    for section in msgspec.structs.fields(Config):
        for field in msgspec.structs.fields(section.type):
            info = msgspec.inspect.type_info(field.type)
            about, unit = "", ""
            if isinstance(info, msgspec.inspect.Metadata):
                about = (info.extra_json_schema or {}).get("description", "")
                unit = (info.extra or {}).get("unit", "")
                info = info.type
            least, most = getattr(info, "ge", None), getattr(info, "le", None)
            kind = get_args(field.type)[0]
            choices = get_args(kind) if get_origin(kind) is Literal else ()
            yield Setting(
                section.name, field.name, field.type, field.default, about, unit, least, most,
                choices,
            )  # fmt: skip


def contradictions(config: Config, unknown: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield what values that are each fine are not together: the setting to change, and why.

    Settings that are `unknown`, by key, are compared with nothing.
    """
    for keys, check in _CHECKS.items():
        if not any(key in unknown for key in keys) and (problem := check(config)):
            yield keys[0], problem


def _cache(config: Config) -> str:
    memory = config.memory
    if memory.cache_mib <= memory.budget_mib:
        return ""
    return (
        f"memory.cache_mib is {memory.cache_mib}, above memory.budget_mib {memory.budget_mib}: "
        "lower the cache, or raise the budget (a shard takes both)"
    )


def _shards(config: Config) -> str:
    node = config.node
    if not 0 < node.logs < node.shards:
        return ""
    return (
        f"node.shards is {node.shards}, above node.logs {node.logs}: each shard needs a log of its "
        "own, so lower the shards, or found the node with more logs"
    )


def _cutoff(config: Config) -> str:
    access = config.access
    if access.stale_seconds <= access.cutoff_seconds:
        return ""
    return (
        f"access.cutoff_seconds is {access.cutoff_seconds:g}, below access.stale_seconds "
        f"{access.stale_seconds:g}: sessions would end before new ones are refused, so raise it"
    )


def _host(config: Config) -> str:
    host = config.node.host
    if _is_name(host):
        return ""
    return f"node.host is {host!r}: that is no name of a machine, and no address"


def _listen(config: Config) -> str:
    try:
        if config.metrics.listen:
            split_address(config.metrics.listen)
    except ValueError as error:
        return f"metrics.listen {error}"
    return ""


def _tls(config: Config) -> str:
    tls, links = config.tls, config.links
    given = [name for name in ("certificate", "key", "trust") if getattr(tls, name)]
    missing = [name for name in ("certificate", "key", "trust") if not getattr(tls, name)]
    if given and missing:
        return f"tls.{given[0]} is set and tls.{missing[0]} is not: set certificate, key and trust"
    if not given and tls.plaintext != "allow":
        return (
            f"tls.plaintext is {tls.plaintext}, and there is no certificate: no client could "
            "connect; set tls.certificate, tls.key and tls.trust (`weir cert issue node` makes "
            "them)"
        )
    if not given and links.tls != "off":
        return (
            f"links.tls is {links.tls}, and there is no certificate: set tls.certificate, tls.key "
            "and tls.trust (`weir cert issue node` makes them)"
        )
    return ""


def _advertise(config: Config) -> str:
    try:
        if config.node.advertise:
            split_address(config.node.advertise)
    except ValueError as error:
        return f"node.advertise {error}"
    return ""


def advertised(config: Config) -> tuple[str, int]:
    """Return the host and port where other nodes reach this one; empty and 0 if nothing says so."""
    node = config.node
    if node.advertise:
        return split_address(node.advertise)
    return ("", 0) if node.host in _ALL or not node.port else (node.host, node.port)


def _ports(config: Config) -> str:
    return "" if _listen(config) else metrics_ports(config, config.node.shards or 1)


def metrics_ports(config: Config, shards: int) -> str:
    """Return what is wrong with the ports of the figures of so many shards; empty if nothing."""
    if not config.metrics.listen:
        return ""
    host, port = split_address(config.metrics.listen)
    last, node = port + shards - 1, config.node
    if not port:
        return ""
    if last > _PORT_MAX:
        return (
            f"metrics.listen is {config.metrics.listen}, and {shards} shards take the ports {port} "
            f"to {last}: begin at {_PORT_MAX + 1 - shards} at most"
        )
    if not port <= node.port <= last or not (host == node.host or {host, node.host} & _ALL):
        return ""
    if shards == 1:
        return f"metrics.listen and node.port are both {port}: give metrics a port of their own"
    return (
        f"metrics.listen is {config.metrics.listen}, and {shards} shards take the ports {port} to "
        f"{last}: node.port {node.port} is one of them, give metrics ports of their own"
    )


#: By the settings that each compares.
_CHECKS: dict[tuple[str, ...], Callable[[Config], str]] = {
    ("memory.cache_mib", "memory.budget_mib"): _cache,
    ("node.shards", "node.logs"): _shards,
    ("access.cutoff_seconds", "access.stale_seconds"): _cutoff,
    ("node.host",): _host,
    ("node.advertise",): _advertise,
    ("metrics.listen",): _listen,
    ("tls.certificate", "tls.key", "tls.trust", "tls.plaintext", "links.tls"): _tls,
    ("metrics.listen", "node.host", "node.port", "node.shards"): _ports,
}


def _is_name(host: str) -> bool:
    """Return whether one can even ask for a host: an address, or parts of letters and digits."""
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    try:
        name = host.encode("idna").decode("ascii")
    except UnicodeError:
        return False
    return re.fullmatch(r"[A-Za-z0-9_.-]+", name) is not None


def split_address(text: str) -> tuple[str, int]:
    """Split HOST:PORT; an IPv6 address stands in brackets. Raises `ValueError`."""
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not bare or not _is_name(bare) or not port.isdecimal() or int(port) > 65_535:
        raise ValueError(f"is {text!r}: write HOST:PORT, as in 127.0.0.1:6801")
    return bare, int(port)
