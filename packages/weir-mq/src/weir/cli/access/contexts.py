"""Contexts: under a name, the address of a set, the user, and the files for logins; never a
password.

They lie in `contexts.toml` in weir's folder of the user's settings. A verb that connects goes by
the first of these that is there: `--url` or `--context`, WEIR_URL, WEIR_CONTEXT, the context in
use, weir://localhost.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec.structs import asdict, replace

from weir.client.arguments import parse_url
from weir.client.connection.credentials import PASSWORD, PASSWORD_FILE, split_user
from weir.client.connection.ticket_file import settings_folder
from weir.tls.dialling import client_files

#: Which context a process goes by, if no option says it.
CONTEXT = "WEIR_CONTEXT"
FILE_BYTES_MAX = 256 * 1024
CONTEXTS_MAX = 1_000
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SECRETS = frozenset({"password", "token", "secret"})


class BadContext(ValueError):
    """A context is not there, or cannot be one; the message says what to do."""


class Context(msgspec.Struct, frozen=True):
    """The address of a set, and the user. `url` has hosts alone; paths are absolute. All others may
    be empty.
    """

    url: str
    user: str = ""
    ca: str = ""
    certificate: str = ""
    key: str = ""
    server_name: str = ""
    password_file: str = ""

    @classmethod
    def of_address(cls, address: str, **given: str) -> Context:
        """Take an address apart, and what is given beside it. Raises `BadContext`."""
        try:
            plain, user = split_user(address)
            plain, _, query = plain.partition("?")
            # Without what the environment says now: it may say something else later.
            files = client_files(query, {})._asdict() if query else {}
        except ValueError as error:
            raise BadContext(str(error)) from None
        parts = {"user": user, **files}
        for name, value in given.items():
            if value and parts.get(name, "") not in ("", value):
                raise BadContext(f"the address says {name} already: give it once")
            parts[name] = value or parts.get(name, "")
        for name in ("ca", "certificate", "key", "password_file"):
            if parts.get(name):
                parts[name] = str(Path(parts[name]).expanduser().absolute())
        made = cls(plain, **parts)
        made.check()
        return made

    def check(self) -> None:
        """Raise `BadContext` unless a client can take it."""
        if self.tls and not self.url.startswith("weirs://"):
            raise BadContext(f"{next(iter(self.tls))} is of TLS: write weirs:// in the address")
        if self.password_file and not self.user:
            raise BadContext("a file with a password needs a user: give --user")
        if "?" in self.url or "@" in self.url:
            raise BadContext("url has hosts alone: user and files have lines of their own")
        try:
            parse_url(split_user(self.address)[0])
        except ValueError as error:
            raise BadContext(str(error)) from None

    @property
    def tls(self) -> dict[str, str]:
        """The files of TLS, and the name of brokers, as far as they are given."""
        names = ("ca", "certificate", "key", "server_name")
        return {name: getattr(self, name) for name in names if getattr(self, name)}

    @property
    def address(self) -> str:
        """The URL for clients: everything but the password's file."""
        scheme, _, places = self.url.partition("://")
        user = f"{quote(self.user, safe='')}@" if self.user else ""
        query = "&".join(f"{name}={quote(value)}" for name, value in self.tls.items())
        return f"{scheme}://{user}{places}{'?' if query else ''}{query}"

    def told(self) -> dict[str, str]:
        """Return what is given, by name."""
        return {name: value for name, value in asdict(self).items() if value}


class Contexts(msgspec.Struct, frozen=True):
    """All contexts by name, and the one in use; "" is none."""

    by_name: Mapping[str, Context] = msgspec.field(default_factory=dict)
    current: str = ""

    def find(self, name: str) -> Context:
        """Return a context. Raises `BadContext` if it is not there."""
        if (found := self.by_name.get(name)) is None:
            there = ", ".join(self.by_name) or "none yet: weir context add NAME --url URL"
            raise BadContext(f"no context {name!r}: there is {there}")
        return found

    def adding(self, name: str, context: Context, use: bool) -> Contexts:
        """Return these and one more, or another one of its name. Raises `BadContext`."""
        if not _NAME.fullmatch(name):
            raise BadContext(f"{name!r} is no name: up to 64 letters, digits, - and _")
        if name not in self.by_name and len(self.by_name) >= CONTEXTS_MAX:
            raise BadContext(f"there are {CONTEXTS_MAX:,} contexts: remove one first")
        current = name if use or not self.by_name else self.current
        return Contexts({**self.by_name, name: context}, current)

    def using(self, name: str) -> Contexts:
        """Return these with another one in use. Raises `BadContext`."""
        self.find(name)
        return replace(self, current=name)

    def removing(self, name: str) -> Contexts:
        """Return these without one. Raises `BadContext`."""
        self.find(name)
        left = {other: one for other, one in self.by_name.items() if other != name}
        return Contexts(left, "" if self.current == name else self.current)


def contexts_file(environment: Mapping[str, str] | None = None) -> Path:
    """Return where contexts lie."""
    return settings_folder(environment) / "contexts.toml"


def read_contexts(file: Path) -> Contexts:
    """Return the contexts of a file; none if it is not there. Raises `BadContext`, `OSError`."""
    try:
        with file.open("rb") as opened:
            data = opened.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return Contexts()
    if len(data) > FILE_BYTES_MAX:
        raise BadContext(f"{file} has over {FILE_BYTES_MAX:,} bytes: remove contexts")
    try:
        rows = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise BadContext(f"{file}: {error}") from None
    listed, current = rows.pop("contexts", {}), rows.pop("current", "")
    if rows or not isinstance(listed, dict) or not isinstance(current, str):
        raise BadContext(f"{file}: it has `current`, and tables [contexts.NAME]")
    found = Contexts()
    for name, row in listed.items():
        try:
            found = found.adding(name, _context(row), False)
        except BadContext as error:
            raise BadContext(f"{file}: context {name}: {error}") from None
    return replace(found, current=current)


def _context(row: Any) -> Context:
    names = Context.__struct_fields__
    if not isinstance(row, dict) or not all(isinstance(one, str) for one in row.values()):
        raise BadContext(f"it is a table of texts: {', '.join(names)}")
    if _SECRETS & row.keys():
        raise BadContext(
            f"it has no password: set {PASSWORD}, or name a file of mode 0600 as password_file"
        )
    if unknown := [name for name in row if name not in names]:
        raise BadContext(f"{unknown[0]!r} is unknown: give {', '.join(names)}")
    if "url" not in row:
        raise BadContext("it needs a url")
    made = Context(**row)
    made.check()
    return made


def write_contexts(file: Path, contexts: Contexts) -> None:
    """Write them, all or nothing. Raises `OSError`."""
    # A string of JSON is one of TOML, and names are bare keys.
    lines = [f"current = {_text(contexts.current)}"]
    for name, context in contexts.by_name.items():
        lines += ["", f"[contexts.{name}]"]
        lines += [f"{key} = {_text(value)}" for key, value in context.told().items()]
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=file.parent, prefix=".contexts-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as opened:
            opened.write("\n".join(lines) + "\n")
        os.replace(aside, file)
    except BaseException:
        os.unlink(aside)
        raise


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def address_in_use(environment: Mapping[str, str] | None = None) -> str:
    """Return where a process connects to that no option tells it; "" if nothing says it. Raises
    `BadContext`, `OSError`.
    """
    if url := (os.environ if environment is None else environment).get("WEIR_URL"):
        return url
    _, found = chosen_context(environment)
    return "" if found is None else enter(found)


def chosen_context(
    environment: Mapping[str, str] | None = None,
) -> tuple[str, Context | None]:
    """Return the context that WEIR_CONTEXT names, else the one in use, with its name; ("", None) if
    there is none. Raises `BadContext`, `OSError`.
    """
    contexts = read_contexts(contexts_file(environment))
    given = os.environ if environment is None else environment
    name = given.get(CONTEXT, "") or contexts.current
    return name, contexts.find(name) if name else None


def enter(context: Context) -> str:
    """Return the address of a context; this process, and those that it starts, look for the
    password in its file, unless the environment says where that is.
    """
    if context.password_file and not (os.environ.get(PASSWORD) or os.environ.get(PASSWORD_FILE)):
        os.environ[PASSWORD_FILE] = context.password_file
    return context.address
