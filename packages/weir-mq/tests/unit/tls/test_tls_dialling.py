"""How a URL says that TLS is used, and with which files."""

from __future__ import annotations

import pickle

import pytest

from weir.client.arguments import parse_url
from weir.errors import Disconnected
from weir.tls.dialling import SecureHost, by_its_name, check_role, client_files, files_of, like
from weir.tls.files import ALPN, ClientFiles
from weir.tls.identity import parse_identity
from weir.tls.peers import PeerCertificate, certificate_of, check_broker


def test_a_url_names_the_files() -> None:
    url = "weirs://broker1:7000,[::1]/?ca=/etc/a%20b+c.pem&certificate=me.pem&key=me.key"
    hosts = parse_url(url)
    assert [(str(host), port) for host, port in hosts] == [("broker1", 7000), ("::1", 6800)]
    files = ClientFiles("/etc/a b+c.pem", "me.pem", "me.key")
    assert files_of(hosts) == files
    assert files_of(parse_url("weir://broker1")) is None


def test_what_a_url_leaves_out_comes_from_the_environment() -> None:
    around = {"WEIR_CA": "ca.pem", "WEIR_SERVER_NAME": "broker", "WEIR_KEY": ""}
    assert client_files("", around) == ClientFiles("ca.pem", server_name="broker")
    assert client_files("ca=other.pem", around).ca == "other.pem"


@pytest.mark.parametrize(
    "query", ["ca", "ca=", "ca=a&ca=b", "password=x", "certificate=me.pem", "key=me.key", "&"]
)
def test_a_url_that_makes_no_sense_is_refused(query: str) -> None:
    with pytest.raises(ValueError, match="is no address"):
        parse_url(f"weirs://broker1?{query}")


def test_files_of_tls_in_a_url_without_tls_are_refused() -> None:
    with pytest.raises(ValueError, match="belong to weirs://"):
        parse_url("weir://broker1?ca=ca.pem")


def test_a_host_with_tls_is_none_without_and_travels_to_executors() -> None:
    files = ClientFiles("ca.pem")
    host = SecureHost("broker1", files)
    assert host != "broker1"
    assert "broker1" != host  # noqa: SIM300  # the other side decides here
    assert host == SecureHost("broker1", files)
    assert host != SecureHost("broker1", ClientFiles("other.pem"))
    assert len({host, "broker1", SecureHost("broker1", files)}) == 2
    again = pickle.loads(pickle.dumps(host))
    assert (again, again.files) == (host, files)
    assert like("broker2", host) == SecureHost("broker2", files)
    assert type(like("broker2", "broker1")) is type(by_its_name("broker2", "broker1")) is str
    named = SecureHost("10.0.0.1", files._replace(server_name="broker1"))
    assert like("10.0.0.2", named) == SecureHost("10.0.0.2", named.files)
    assert by_its_name("broker2", named) == SecureHost("broker2", files)
    assert f"{host}:{1}" == "broker1:1"


@pytest.mark.parametrize(
    ("who", "system", "number", "why"),
    [
        ("weir://abc/0/node/1", 0xABC, 1, ""),
        ("weir://abc/0/node/2", 0xABC, 1, "says it is node 1"),
        ("weir://abd/0/node/1", 0xABC, 1, "of system abc"),
        ("weir://abc/0/user/default/anna", 0xABC, 1, "user/default/anna"),
    ],
)
def test_a_broker_is_who_its_certificate_names(
    who: str, system: int, number: int, why: str
) -> None:
    peer = PeerCertificate(parse_identity(who), "1", 0.0)
    if why:
        with pytest.raises(Disconnected, match=why):
            check_broker(peer, system, number, "broker1:6800")
    else:
        check_broker(peer, system, number, "broker1:6800")
    check_broker(None, system, number, "a connection without TLS")
    check_broker(PeerCertificate(None, "1", 0.0), system, number, "one of a public CA")


def test_who_is_no_broker_or_speaks_something_else_is_left() -> None:
    anna = PeerCertificate(parse_identity("weir://abc/0/user/default/anna"), "1", 0.0)
    with pytest.raises(Disconnected, match="no broker"):
        check_role(anna, ALPN)
    with pytest.raises(Disconnected, match="no broker"):
        check_role(None, None)
    check_role(PeerCertificate(parse_identity("weir://abc/0/node/1"), "1", 0.0), ALPN)


def test_a_certificate_with_two_identities_is_nobodys() -> None:
    names = (("DNS", "a"), ("URI", "weir://abc/0/node/1"), ("URI", "http://a"))
    found = {
        "notAfter": "Nov 26 22:00:00 2036 GMT",
        "serialNumber": "00AB",
        "subjectAltName": names,
    }
    assert certificate_of(found).identity == parse_identity("weir://abc/0/node/1")
    assert certificate_of(found).serial == "ab"
    found["subjectAltName"] = (*names, ("URI", "weir://abc/0/node/2"))
    assert certificate_of(found).identity is None
    found["subjectAltName"] = (("URI", "weir://abc/0/king/2"),)
    assert certificate_of(found).identity is None
