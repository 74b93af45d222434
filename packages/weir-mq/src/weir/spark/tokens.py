"""Tokens for tasks: the driver logs in by a password, and each task that reads gets a token.

A token is of the query's user, and good for the topics of the query alone, for an hour. Planning
renews it when half of that is over, so tasks of each micro-batch have half an hour or more. It lies
in what Spark sends to a task, and in nothing that Spark writes down or shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple
from uuid import uuid4

from weir.access.tokens import LIMITED_TOPICS_MAX
from weir.client.connection.system import SYSTEM
from weir.errors import BadRequest, Refused, Unavailable, UnknownOpcode
from weir.model.topic import full_name_of, split_name
from weir.protocol.client.tokens import IssueToken, RenewToken, TokenIssued
from weir.spark.blocking_client import BlockingClient, ask
from weir.spark.fetcher import Portion
from weir.spark.login import Hosts, LoginHosts
from weir.spark.options import Options

#: How long a token lives, and after how much of that planning takes another one.
TOKEN_SECONDS = 3_600
RENEWED_AFTER_SECONDS = TOKEN_SECONDS / 2
#: A set that issues none is asked again after this time.
ASKED_AGAIN_SECONDS = 60.0

Topics = tuple[str, ...]


class _Issued(NamedTuple):
    """A token, empty where the set issues none; when that was, by a clock that never goes back; and
    the connection that asked. Another one means that the user logged in anew, perhaps because its
    password was changed: then its tokens of before are worth nothing.
    """

    token: str
    since: float
    client: BlockingClient


#: By hosts and topics.
_issued: dict[tuple[Hosts, Topics], _Issued] = {}
#: By hosts and what a query reads, the topics that it has had up to now.
_topics: dict[tuple[Hosts, Topics], Topics] = {}
#: By process, the id that its tokens have in common.
_ids: dict[int, str] = {}


def with_tokens(portions: Sequence[Portion], options: Options) -> list[Portion]:
    """Return the work of tasks, with a token in the place of a password; as it is where nobody logs
    in, or where the set issues no tokens: then tasks need the password.
    """
    hosts = options.hosts
    if not portions or not isinstance(hosts, LoginHosts):
        return [*portions]
    topics = _of_query(options, (one.source.topic for one in portions))
    # No token names more topics; one for all that the user may would be too much.
    if len(topics) > LIMITED_TOPICS_MAX or not (token := _token(hosts, topics)):
        return [*portions]
    login = replace(hosts.login, password_file="", topics=topics, token=token)
    given = LoginHosts(hosts, login)
    return [replace(one, source=replace(one.source, hosts=given)) for one in portions]


def _of_query(options: Options, read: Iterable[str]) -> Topics:
    """Return the topics of a query: all that it names, and those of a prefix once they are read. A
    smaller part of them would be another token, and another connection, for each micro-batch.
    """
    named = options.topics or (options.topic,)
    key = options.hosts, named
    known = {_full(one) for one in named if not one.endswith("*")}
    _topics[key] = tuple(sorted(known.union(_topics.get(key, ()), map(_full, read))))
    return _topics[key]


def _token(hosts: Hosts, topics: Topics) -> str:
    now = SYSTEM.get().monotonic()

    def question(client: BlockingClient) -> str:
        had = _issued.get((hosts, topics))
        if had is not None and had.client is client:
            lasts = RENEWED_AFTER_SECONDS if had.token else ASKED_AGAIN_SECONDS
            if now - had.since < lasts:
                return had.token
        token = _ask_token(client, topics)
        _issued[hosts, topics] = _Issued(token, now, client)
        return token

    return ask(hosts, question)


def _ask_token(client: BlockingClient, topics: Topics) -> str:
    """Ask for a token; return "" where there is none to be had."""
    try:
        reply = client.request(IssueToken(TOKEN_SECONDS, _token_id(), None, topics))
        assert isinstance(reply, TokenIssued)  # decoded by the opcode of the request
        with suppress(Refused):  # tasks by the tokens of before go on until those end
            client.request(RenewToken(reply.token))
    except (BadRequest, Unavailable, UnknownOpcode):
        return ""  # no key that signs, none that this node opens, or the release before
    return reply.token.decode()


def _token_id() -> str:
    """Return the id of the tokens of this process: each renews the one before."""
    return _ids.setdefault(SYSTEM.get().process(), f"spark-{uuid4()}")


def _full(topic: str) -> str:
    return full_name_of(*split_name(topic))
