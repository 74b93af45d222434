"""Lines of `switch.p4` that run: its statements, read as Python. Nothing compiles it here."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

_MACRO = re.compile(r"^#define (\w+)\(([^)]*)\)[ \\]*\n((?:.*\\\n)*.*\n)", re.MULTILINE)
_ACTION = re.compile(
    r"RegisterAction<[^;]*?>\((\w+)\) (\w+) = \{\s*void apply\([^)]*\) \{(.*?)\}\s*\};",
    re.DOTALL,
)


class Bits:
    """A field of bits, of which one at a time is read and written."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __getitem__(self, at: slice) -> int:
        return self.value >> at.start & 1

    def __setitem__(self, at: slice, bit: int) -> None:
        self.value = self.value & ~(1 << at.start) | bit << at.start


class Minima:
    """What the ingress does between its access to the registers of inputs and the new barriers."""

    def __init__(self, text: str) -> None:
        macros = {name: ([one.strip() for one in names.split(",")], body.replace("\\\n", "\n"))
                  for name, names, body in _MACRO.findall(text)}  # fmt: skip
        text = _expanded(_MACRO.sub("", text), macros)
        self._registers: dict[str, int] = {}
        self._actions: dict[str, tuple[str, Any]] = {}
        for register, action, body in _ACTION.findall(text):
            self._registers[register] = 0
            self._actions[action] = register, _compiled(body)
        access, rest = text[text.index("if (meta.input == 0)") :].split("outputs.apply", 1)
        access = access[: access.rindex("if (meta.input == 255)")]
        minima = rest[rest.index("// The up half") : rest.index("if (meta.color == 3)")]
        self._run = _compiled(access + minima)

    def write(self, **values: int) -> None:
        """Set registers, as the control plane does."""
        assert values.keys() <= self._registers.keys()
        self._registers.update({name: value & 0xFFFF_FFFF for name, value in values.items()})

    def packet(
        self, input: int, to_lower: int, barrier: int, commit: int, live: int, counts: int
    ) -> tuple[int, int]:
        """Let a packet pass; return its new barriers."""
        toc = SimpleNamespace(barrier=barrier, commit=commit)
        meta = SimpleNamespace(input=input, to_lower=to_lower, live=Bits(live), counts=Bits(counts))
        names: dict[str, Any] = {"meta": meta, "headers": SimpleNamespace(toc=toc)}
        names |= {name: SimpleNamespace(execute=self._access(*action, names))
                  for name, action in self._actions.items()}  # fmt: skip
        exec(self._run, {"u32": _u32, "s32": _s32}, names)
        return toc.barrier & (1 << 48) - 1, toc.commit & (1 << 48) - 1

    def _access(self, register: str, body: Any, names: dict[str, Any]) -> Callable[[int], int]:
        done: list[str] = []

        def execute(_: int) -> int:
            assert not done, f"{register}: a packet has one access"
            done.append(register)
            local = {**names, "value": self._registers[register], "read": 0}
            exec(body, {"u32": _u32, "s32": _s32}, local)
            self._registers[register] = local["value"] & 0xFFFF_FFFF
            return int(local["read"])

        return execute


def _u32(value: int) -> int:
    return value & 0xFFFF_FFFF


def _s32(value: int) -> int:
    return (value + (1 << 31) & 0xFFFF_FFFF) - (1 << 31)


def _expanded(text: str, macros: dict[str, tuple[list[str], str]]) -> str:
    """Put the bodies of macros in the place of their calls."""
    for name, (names, body) in macros.items():
        for call in [*re.finditer(rf"\b{name}\(([^()]*)\)", text)][::-1]:
            given = [one.strip() for one in call[1].split(",")]
            made = body
            for key, value in zip(names, given, strict=True):
                made = re.sub(rf"##{key}\b|\b{key}\b", value, made)
            text = text[: call.start()] + made.replace("##", "") + text[call.end() :]
    return text


def _compiled(text: str) -> Any:
    """Read statements as Python: blocks, assignments, casts, and bits of fields."""
    text = re.sub(r"//.*", "", text)
    for old, new in ((r"\(bit<48>\)\(int<48>\)\(int<32>\)([\w.]+)", r"s32(\1)"),
                     (r"\(int<32>\)\(", "s32("), (r"\(bit<32>\)([\w.]+)", r"u32(\1)"),
                     (r"&&", " and "), (r"\|\|", " or ")):  # fmt: skip
        text = re.sub(old, new, text)
    lines, depth = [], 0
    for part in re.findall(r"[^;{}]+[;{]?|\}", " ".join(text.split())):
        one = part.strip()
        if one == "}":
            depth -= 1
        elif one.endswith("{"):
            lines.append(" " * depth + one.removesuffix("{").strip() + ":")
            depth += 1
        elif one:
            lines.append(" " * depth + one.removesuffix(";"))
    return compile("\n".join(lines), "switch.p4", "exec")
