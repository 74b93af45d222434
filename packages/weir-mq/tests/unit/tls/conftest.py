"""One CA for the tests of this folder: each certificate costs some milliseconds."""

from __future__ import annotations

import ssl

import pytest

from rigs.certificates import TestCa
from weir.tls.files import ServerTls, client_context, server_tls


@pytest.fixture(scope="session")
def ca(tmp_path_factory: pytest.TempPathFactory) -> TestCa:
    """Return a CA that has issued node-1."""
    made = TestCa(tmp_path_factory.mktemp("ca") / "ca")
    made.issue("node/1")
    return made


@pytest.fixture(scope="session")
def serving(ca: TestCa) -> ServerTls:
    """Return what node 1 serves with."""
    issued = ca.folder / "issued"
    files = ca.files_of(issued / "node-1.pem")
    return server_tls(files)


@pytest.fixture(scope="session")
def client(ca: TestCa) -> ssl.SSLContext:
    """Return what connects to it."""
    return client_context(ca.client())
