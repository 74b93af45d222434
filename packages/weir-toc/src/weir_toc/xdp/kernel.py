"""BPF in the kernel, by bpf(2) alone: maps, programs from an object file, links, and test runs."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import struct
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from weir_toc.errors import XdpError

OBJECT = Path(__file__).with_name("switch.o")

_CALL = {"x86_64": 321, "aarch64": 280, "riscv64": 280}
_MAP_CREATE, _MAP_UPDATE, _MAP_DELETE, _PROG_LOAD, _TEST_RUN, _LINK_CREATE = 0, 2, 3, 5, 10, 28
_ENABLE_STATS, _RUN_TIME = 32, 0
_PROG_TYPE_XDP, _CPUMAP = 6, 16
_ATTACH_DEVMAP, _ATTACH_CPUMAP, _ATTACH_XDP = 33, 35, 37
#: What runs in a map, and not on a port.
_ATTACHED = {"leave": _ATTACH_DEVMAP, "forward": _ATTACH_CPUMAP}
_DRIVER_MODE = 1 << 2
_LOG_BYTES = 1 << 20
_MAP_FD = 1
_EM_BPF, _RELOCATION = 247, 9

_ELF = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_REL = struct.Struct("<QQ")
_MAP = struct.Struct("<5I")


class MapSpec(NamedTuple):
    """A map as the object file declares it."""

    type: int
    key_bytes: int
    value_bytes: int
    entries: int
    flags: int


@dataclass(frozen=True)
class Section:
    """The instructions of one program, and where addresses of maps belong: offset and name."""

    code: bytes
    maps: tuple[tuple[int, str], ...]


class ObjectFile(NamedTuple):
    """What `switch.o` holds."""

    maps: Mapping[str, MapSpec]
    programs: Mapping[str, Section]
    license: bytes


def read_object(data: bytes) -> ObjectFile:
    """Return the maps and programs of an object file for BPF. Raises XdpError for another file."""
    try:
        header = _ELF.unpack_from(data)
        if header[0][:6] != b"\x7fELF\x02\x01" or header[2] != _EM_BPF:
            raise XdpError("this is no object file for BPF: `make xdp` makes one")
        heads = [_SECTION.unpack_from(data, header[6] + n * header[11]) for n in range(header[12])]
        bodies = [data[head[4] : head[4] + head[5]] for head in heads]
        names = [_text(bodies[header[13]], head[0]) for head in heads]
        symbols = [*_SYMBOL.iter_unpack(bodies[names.index(".symtab")])]
        texts = bodies[heads[names.index(".symtab")][6]]
        at_map, maps = names.index("maps"), {}
        for symbol in symbols:
            if symbol[3] == at_map:
                maps[_text(texts, symbol[0])] = MapSpec(
                    *_MAP.unpack_from(bodies[at_map], symbol[4])
                )
        programs = {}
        for number, name in enumerate(names):
            if name.startswith("xdp/"):
                entries = [
                    (offset, _text(texts, symbols[info >> 32][0]))
                    for head, body in zip(heads, bodies, strict=True)
                    if head[1] == _RELOCATION and head[7] == number
                    for offset, info in _REL.iter_unpack(body)
                ]
                programs[name.removeprefix("xdp/")] = Section(bodies[number], tuple(entries))
        return ObjectFile(maps, programs, bodies[names.index("license")].rstrip(b"\0"))
    except (struct.error, IndexError, ValueError) as error:
        raise XdpError(f"the object file is damaged: {error}") from error


def _text(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode()


# -- calls -------------------------------------------------------------------------------------


def _bpf(command: int, attributes: bytes | bytearray) -> int:
    number = _CALL.get(platform.machine())
    if number is None:
        raise XdpError(f"bpf(2) is not known for {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = (ctypes.c_char * len(attributes)).from_buffer_copy(attributes)
    result = int(libc.syscall(number, command, buffer, len(attributes)))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _address(buffer: ctypes.Array[ctypes.c_char]) -> int:
    return ctypes.addressof(buffer)


def missing() -> str:
    """Return what this process lacks to run a switch in the kernel; "" if nothing."""
    try:
        os.close(_bpf(_MAP_CREATE, struct.pack("=5I", 2, 4, 8, 1, 0)))
    except XdpError as error:
        return str(error)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            return "the kernel has no BPF_SYSCALL"
        return f"bpf(2): {error.strerror}; root is needed (CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON)"
    return ""


class Map:
    """One map, open."""

    def __init__(self, name: str, spec: MapSpec) -> None:
        self.spec = spec
        try:
            self.fd = _bpf(_MAP_CREATE, struct.pack("=5I", *spec))
        except OSError as error:
            raise XdpError(f"the kernel makes no map {name!r}: {error.strerror}") from error

    def set(self, key: int, value: bytes) -> None:
        """Set the value of a key."""
        self._call(_MAP_UPDATE, key, value)

    def delete(self, key: int) -> None:
        """Remove a key."""
        self._call(_MAP_DELETE, key, b"")

    def shared(self) -> mmap.mmap:
        """Return the value of a map of one entry, as memory that the kernel writes, too."""
        pages = -(-self.spec.value_bytes // mmap.PAGESIZE)
        return mmap.mmap(self.fd, pages * mmap.PAGESIZE)

    def _call(self, command: int, key: int, value: bytes) -> None:
        keys = ctypes.create_string_buffer(struct.pack("=I", key), 4)
        values = ctypes.create_string_buffer(value, max(1, len(value)))
        _bpf(command, struct.pack("=I4xQQQ", self.fd, _address(keys),
                                  _address(values) if value else 0, 0))  # fmt: skip


class TestRun(NamedTuple):
    """What a program did to one frame."""

    action: int
    frame: bytes
    nanoseconds: int


class Loaded:
    """The programs and maps of an object file in the kernel; closing it removes them."""

    def __init__(self, object_file: ObjectFile, for_tests: bool = False) -> None:
        """`for_tests` loads all programs as the kernel can run them in a test."""
        self.maps: dict[str, Map] = {}
        self.programs: dict[str, int] = {}
        self._open = ExitStack()
        with ExitStack() as stack:
            for name, spec in object_file.maps.items():
                if spec.type == _CPUMAP:  # the kernel has no place for CPUs that it cannot have
                    spec = spec._replace(entries=max(os.sched_getaffinity(0)) + 1)
                self.maps[name] = made = Map(name, spec)
                stack.callback(os.close, made.fd)
            for name, section in object_file.programs.items():
                attach = _ATTACH_XDP if for_tests else _ATTACHED.get(name, _ATTACH_XDP)
                fd = self._load(name, section, object_file.license, attach)
                self.programs[name] = fd
                stack.callback(os.close, fd)
            self._open = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all; what is attached by a link stays until the link is closed."""
        self._open.close()

    def _load(self, name: str, section: Section, license: bytes, attach: int) -> int:
        code = bytearray(section.code)
        for offset, map_name in section.maps:
            code[offset + 1] = code[offset + 1] & 0x0F | _MAP_FD << 4
            code[offset + 4 : offset + 8] = struct.pack("=I", self.maps[map_name].fd)
        return _load(name, bytes(code), license, attach)

    def test(self, program: str, frame: bytes) -> TestRun:
        """Run a program on one frame, as if it had come by the device 1 of this namespace."""
        data_in = ctypes.create_string_buffer(frame, len(frame))
        data_out = ctypes.create_string_buffer(len(frame) + 256)
        attributes = bytearray(80)
        struct.pack_into("=IIIIQQII", attributes, 0, self.programs[program], 0, len(frame),
                         len(data_out), _address(data_in), _address(data_out), 1, 0)  # fmt: skip
        buffer = (ctypes.c_char * len(attributes)).from_buffer(attributes)
        libc = ctypes.CDLL(None, use_errno=True)
        number = _CALL[platform.machine()]
        if libc.syscall(number, _TEST_RUN, buffer, len(attributes)) < 0:
            raise XdpError(f"the test run of {program!r}: {os.strerror(ctypes.get_errno())}")
        _, action, _, size, _, _, _, duration = struct.unpack_from("=IIIIQQII", attributes)
        return TestRun(action, data_out.raw[:size], duration)


def _load(name: str, code: bytes, license: bytes, attach: int) -> int:
    instructions = ctypes.create_string_buffer(code, len(code))
    text = ctypes.create_string_buffer(license)
    log = ctypes.create_string_buffer(_LOG_BYTES)

    def attributes(level: int) -> bytes:
        return struct.pack(
            "=IIQQIIQII16sII", _PROG_TYPE_XDP, len(code) // 8, _address(instructions),
            _address(text), level, _LOG_BYTES if level else 0, _address(log) if level else 0,
            0, 0, name.encode(), 0, attach,
        )  # fmt: skip

    try:
        return _bpf(_PROG_LOAD, attributes(0))
    except OSError as error:
        try:
            return _bpf(_PROG_LOAD, attributes(1))
        except OSError:
            why = log.value.decode(errors="replace").strip().splitlines()[-3:]
            raise XdpError(
                f"the kernel refuses the program {name!r}: {error.strerror}. {' '.join(why)}"
            ) from error


def link_native(program: int, ifindex: int) -> int:
    """Attach a program to a device in native mode; return a link that holds it until closed."""
    return _bpf(_LINK_CREATE, struct.pack("=IIII", program, ifindex, _ATTACH_XDP, _DRIVER_MODE))


def count_run_time() -> int:
    """Let `fdinfo` say for how long programs ran; return what ends that if it is closed."""
    return _bpf(_ENABLE_STATS, struct.pack("=I", _RUN_TIME))


def pass_program() -> int:
    """Load a program that passes everything: two instructions."""
    code = struct.pack("<BBhi", 0xB7, 0, 0, 2) + struct.pack("<BBhi", 0x95, 0, 0, 0)
    return _load("pass", code, b"MIT", _ATTACH_XDP)
