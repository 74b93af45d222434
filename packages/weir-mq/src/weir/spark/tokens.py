"""Tokens for tasks: the driver logs in by a password, and each task that reads gets a token.

A token is of the query's user, and good for the topics of the query alone, for an hour. Planning
renews it when half of that is over, so tasks of each micro-batch have half an hour or more; and for
as long as the process that plans lives, a thread of it does, so that connections of tasks which run
for longer go on. A token lies in what Spark sends to a task, and in nothing that Spark writes down
or shows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple
from uuid import uuid4

from weir.access.tokens import LIMITED_TOPICS_MAX
from weir.client.connection.system import SYSTEM, System
from weir.errors import BadRequest, NotAuthenticated, Refused, Unavailable, UnknownOpcode, WeirError
from weir.model.topic import full_name_of, split_name
from weir.protocol.client.tokens import IssueToken, RenewToken, TokenIssued
from weir.spark.blocking_client import CALL_TIMEOUT, BlockingClient, ask
from weir.spark.fetcher import Portion
from weir.spark.login import Hosts, LoginHosts, credentials_of
from weir.spark.options import Options

log = logging.getLogger("weir.spark")

#: How long a token lives, and after how much of that planning takes another one.
TOKEN_SECONDS = 3_600
RENEWED_AFTER_SECONDS = TOKEN_SECONDS / 2
#: A set that issues none is asked again after this time.
ASKED_AGAIN_SECONDS = 60.0
#: How often a thread looks for tokens to renew, and for how long after tasks were last planned.
_LOOK_SECONDS = 30.0
_KEPT_SECONDS = 24 * 3_600.0

Topics = tuple[str, ...]


class _Issued(NamedTuple):
    """A token, empty where the set issues none; when that was, by a clock that never goes back; and
    the connection that asked. Another one means that the user logged in anew, perhaps because its
    password was changed: then its tokens of before are worth nothing.
    """

    token: str
    since: float
    client: BlockingClient
    #: When tasks were last planned with it.
    planned: float


#: By hosts and topics.
_issued: dict[tuple[Hosts, Topics], _Issued] = {}
#: By hosts and what a query reads, the topics that it has had up to now.
_topics: dict[tuple[Hosts, Topics], Topics] = {}
#: By process, the id that its tokens have in common: each renews those before. A process that has
#: one has a thread that renews.
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
                _issued[hosts, topics] = had._replace(planned=now)
                return had.token
        token = _ask_token(client, topics)
        _issued[hosts, topics] = _Issued(token, now, client, now)
        return token

    return ask(hosts, question)


def _ask_token(client: BlockingClient, topics: Topics) -> str:
    """Ask for a token, which renews those of this process; return "" where the set issues none."""
    try:
        reply = client.request(IssueToken(TOKEN_SECONDS, _token_id(), None, topics))
    except (BadRequest, Unavailable, UnknownOpcode):
        return ""  # no key that signs, none that this node opens, or the release before
    assert isinstance(reply, TokenIssued)  # decoded by the opcode of the request
    with suppress(Refused):  # then connections end with the tokens that they came by
        client.request(RenewToken(reply.token))
    return reply.token.decode()


def _token_id() -> str:
    """Return the id of the tokens of this process; see to it that they are renewed."""
    system = SYSTEM.get()
    process = system.process()
    if process not in _ids:
        _ids[process] = f"spark-{uuid4()}"
        system.thread(lambda: _keep(system), "weir tokens")
    return _ids[process]


def _keep(system: System) -> None:
    """Renew tokens for as long as this process lives."""
    while True:
        system.sleep(_LOOK_SECONDS)
        renew_due(system.monotonic())


def renew_due(now: float) -> None:
    """Renew the tokens of which half is over at `now`, unless no task was planned for a day. It has
    connections of its own, because those of the process are used meanwhile.
    """
    for (hosts, topics), had in [*_issued.items()]:
        is_due = had.token and now - had.since >= RENEWED_AFTER_SECONDS
        if not is_due or now - had.planned >= _KEPT_SECONDS:
            continue
        try:
            token = _renewed(hosts, topics)
        except NotAuthenticated:
            _issued.pop((hosts, topics), None)  # the next planning gets the error
            continue
        except WeirError as error:
            log.warning("tokens of tasks were not renewed, and are tried again: %s", error)
            continue
        current = _issued.get((hosts, topics))
        if token and current is not None and current.client is had.client:
            _issued[hosts, topics] = current._replace(token=token, since=now)


def _renewed(hosts: Hosts, topics: Topics) -> str:
    """Return a token by a new connection to the first host that answers. Raises `WeirError`."""
    lost: WeirError | None = None
    for host, port in hosts:
        try:
            with BlockingClient(
                host, port, CALL_TIMEOUT, "spark-tokens", 0, credentials_of(hosts)
            ) as client:
                return _ask_token(client, topics)
        except NotAuthenticated:
            raise
        except WeirError as error:
            lost = error
    assert lost is not None  # there is a host
    raise lost


def _full(topic: str) -> str:
    return full_name_of(*split_name(topic))
