"""The options of `format("weir")` where it is written to: text from the user, checked once.

topic        where to write, unless a column `topic` says it
url          weir://[user@]host:port[,host2:port2], or weirs:// by TLS; or host and port
user         the user, unless the url names it; the password as for queries that read
passwordFile a file of mode 0600 with the password, on each machine that runs tasks
ca           a file with the CAs of brokers, on each machine, unless the url names it
certificate  a file with the user's certificate, on each machine
key          a file with the key of that
serverName   the name in the certificates of brokers, where they are dialled by another one
id           the name under which the broker remembers what was written. A stream has one: Spark's,
             which is in its checkpoint. Give one to go on with another checkpoint, or after a
             change of the query that needs a new one; batches go by their numbers then, so what has
             the number of a batch that was written is left out. For `write`: what has the same id,
             and the same batch, is written once, however often it is tried; without one, each
             `write` is another
batch        for `write` with an id: which batch of it this is (default 0); numbers rise
schema       which version of the topics' schema all values have
nullValues   error (default): a row whose value is null ends the query; empty: it is written with an
             empty value
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weir.errors import BadName, BadOption
from weir.model.ids import LIMIT_MAX
from weir.model.limits import NAME_CHARACTERS_MAX, SCHEMA_VERSIONS_MAX
from weir.model.topic import split_name
from weir.spark.login import NAMES as LOGIN_NAMES
from weir.spark.login import Hosts, hosts_of, refuse_secrets

#: Spelt as users write them; Spark compares option names without case, and so do we.
NAMES = ("topic", *LOGIN_NAMES, "id", "batch", "schema", "nullValues")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where a query writes to, and by which name; `topic` and `query` are "" where none is given,
    `schema` is 0.
    """

    hosts: Hosts
    topic: str = ""
    query: str = ""
    batch: int = 0
    schema: int = 0
    fills_values: bool = False

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SinkOptions:
        """Read the user's options, names in any case. Raises `BadOption`."""
        options = {name.lower(): str(value) for name, value in given.items()}
        refuse_secrets(options)
        # Spark hands on the options of the query as well: where its checkpoint is, for one.
        known = {name.lower() for name in NAMES} | {"checkpointlocation", "path", "queryname"}
        if unknown := sorted(options.keys() - known):
            raise BadOption(
                f"format('weir') has no option {unknown[0]!r} to write with: it has "
                + ", ".join(NAMES)
            )
        query = options.get("id", "")
        if "id" in options and not 1 <= len(query) <= NAME_CHARACTERS_MAX:
            raise BadOption(
                f"option id is {query[:40]!r}: give 1 to {NAME_CHARACTERS_MAX} characters"
            )
        if "batch" in options and not query:
            raise BadOption("option batch numbers the batches of an id: give the option id, too")
        nulls = options.get("nullvalues", "error").strip().lower()
        if nulls not in ("error", "empty"):
            raise BadOption(f"option nullValues is {nulls!r}: give error or empty")
        return cls(
            hosts_of(options),
            _topic(options),
            query,
            _number(options, "batch", LIMIT_MAX),
            _number(options, "schema", SCHEMA_VERSIONS_MAX),
            nulls == "empty",
        )


def _topic(options: Mapping[str, str]) -> str:
    topic = options.get("topic", "")
    if "topic" in options:
        try:
            split_name(topic)
        except BadName as error:
            raise BadOption(f"option topic: {error}") from None
    return topic


def _number(options: Mapping[str, str], name: str, most: int) -> int:
    text = options.get(name, "0").strip()
    if not (text.isascii() and text.isdigit() and int(text) <= most):
        raise BadOption(f"option {name} is {text!r}: give a whole number from 0 to {most:,}")
    return int(text)
