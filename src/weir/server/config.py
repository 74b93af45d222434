"""The node's settings: a TOML file, each value checked, each with a default.

    [node]      data = "./weir-data"   host = "127.0.0.1"   port = 6800
    [memory]    budget_mib = 512       cache_mib = 128
    [log]       segment_mib = 64       spares = 2
    [stop]      drain_seconds = 10.0

This file maps names to settings; what they mean is decided by the rooms that own them.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from weir.errors import WeirError
from weir.model.limits import BUDGET_BYTES_DEFAULT, CACHE_BYTES_DEFAULT, MIB, SEGMENT_BYTES_DEFAULT

DEFAULT_PORT = 6800


class BadConfig(WeirError):
    """The configuration cannot be used; the message says where and why."""


class NodeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the node keeps its data and listens. Port 0 takes a free one."""

    data: str = "./weir-data"
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT


class MemoryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shard's byte budget, and how much of the log's end is kept in memory for readers."""

    budget_mib: int = BUDGET_BYTES_DEFAULT // MIB
    cache_mib: int = CACHE_BYTES_DEFAULT // MIB


class LogConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The segments of the log, and how many are prepared ahead."""

    segment_mib: int = SEGMENT_BYTES_DEFAULT // MIB
    spares: int = 2


class StopConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long a graceful stop may take."""

    drain_seconds: float = 10.0


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings of a node."""

    node: NodeConfig = NodeConfig()
    memory: MemoryConfig = MemoryConfig()
    log: LogConfig = LogConfig()
    stop: StopConfig = StopConfig()

    def validate(self) -> Config:
        """Raise `BadConfig` for a value that is out of range; return the config itself."""
        bounds = {
            "node.port": (self.node.port, 0, 65_535),
            "memory.budget_mib": (self.memory.budget_mib, 32, 1 << 20),
            "memory.cache_mib": (self.memory.cache_mib, 0, 1 << 20),
            "log.segment_mib": (self.log.segment_mib, 32, 4_096),
            "log.spares": (self.log.spares, 0, 64),
            "stop.drain_seconds": (self.stop.drain_seconds, 0, 3_600),
        }
        for name, (value, least, most) in bounds.items():
            if not least <= value <= most:
                raise BadConfig(f"{name} is {value}: it must be {least} to {most}")
        if not self.node.data or not self.node.host:
            raise BadConfig("node.data and node.host must not be empty: name a folder and a host")
        return self


def load(path: str | Path | None) -> Config:
    """Read a configuration file; None gives the defaults. Raises `BadConfig`."""
    if path is None:
        return Config()
    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        return msgspec.convert(data, Config).validate()
    except OSError as error:
        raise BadConfig(f"{path}: {error.strerror}") from None
    except BadConfig as error:
        raise BadConfig(f"{path}: {error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise BadConfig(f"{path}: {error}") from None
