"""The C reference device: compiled, checked against the golden frames, run against a whole node."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat

import weir
from rigs.certificates import TestCa
from weir import sync
from weir.device import Client
from weir.server.disk.node_folder import NodeFolder, Part
from weir.testing.nodes import running_node

ROOT = Path(__file__).resolve().parents[4]
SOURCE = ROOT / "examples" / "device-c"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None or shutil.which("make") is None:
        packages = ("gcc", "libc6-dev", "make")
        subprocess.run([ROOT / "scripts" / "apt-install", *packages], check=True, timeout=110)
    out = tmp_path_factory.mktemp("device-c")
    make = ("make", "-s", "-C", str(SOURCE), f"OUT={out}", "CC=gcc", "all")
    done = subprocess.run(make, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Run `weir serve`, as a user would."""
    command = (sys.executable, "-m", "weir.cli", "serve", "--port", "0")
    with (
        (tmp_path / "node.log").open("w") as log,
        subprocess.Popen(
            [*command, "--data", str(tmp_path / "data")],
            stdout=subprocess.PIPE, stderr=log, text=True, cwd=tmp_path,
        ) as node,
    ):  # fmt: skip
        try:
            assert node.stdout is not None
            line = node.stdout.readline()
            found = re.search(r":(\d+)", line)
            assert found, f"{line!r}\n{(tmp_path / 'node.log').read_text()}"
            yield int(found[1])
        finally:
            node.terminate()
            node.wait(30)


def create_topic(port: int, partitions: int) -> None:
    async def create() -> None:
        async with weir.connect(f"weir://127.0.0.1:{port}") as client:
            await client.create_topic("locks", partitions=partitions)

    asyncio.run(create())


def demo(built: Path, port: int, *arguments: str) -> list[str]:
    command = [str(built / "demo"), "127.0.0.1", str(port), "locks", "crew", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout.splitlines()


def test_every_golden_frame_is_encoded_and_decoded_in_c(built: Path) -> None:
    command = [str(built / "check_frames"), str(ROOT / "docs" / "device-frames.txt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    frames = (ROOT / "docs" / "device-frames.txt").read_text().splitlines()
    count = sum(not line.startswith("#") for line in frames)
    assert done.stdout == f"{count} frames checked, 0 failures\n"


def test_the_checker_finds_a_changed_frame(built: Path, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "device-frames.txt").read_text()
    wrong = tmp_path / "frames.txt"
    wrong.write_text(text.replace("offset=42", "offset=43", 1))
    command = [str(built / "check_frames"), str(wrong)]
    assert subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 1


def test_the_c_device_publishes_once_and_receives(built: Path, port: int) -> None:
    create_topic(port, partitions=2)
    lines = demo(built, port, "7", "1", "5", "3")
    assert [line.split()[1] for line in lines if line.startswith("sent")] == list("01234")
    values = sorted(line.split(" ", 2)[2] for line in lines if line.startswith("got"))
    assert values == [f"lock 7 event {n}" for n in range(5)], (
        "one was sent twice, and is there once"
    )
    assert lines[-1] == "done"
    with Client("127.0.0.1", port, hub=9, boot=1, topic="locks") as other:
        assert other.subscribe("crew", "locks", partition=0xFFFE).take(0.1) == [], "all is acked"


def test_a_boot_count_that_was_used_before_is_refused(built: Path, port: int) -> None:
    create_topic(port, partitions=1)
    demo(built, port, "7", "2", "1")
    command = [str(built / "demo"), "127.0.0.1", str(port), "locks", "crew", "7", "1", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "raise it" in done.stderr


# -- by TLS --------------------------------------------------------------------------------------


def run_demo(built: Path, port: int, *arguments: str, **variables: str) -> tuple[int, str, str]:
    command = [str(built / "demo"), "127.0.0.1", str(port), "locks", "crew", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, **variables},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def built_with_tls(built: Path) -> Path:
    said = run_demo(built, 1, "7", "1", "0", WEIR_CA=os.devnull)[2]
    if "built without TLS" in said:
        pytest.skip("OpenSSL is not there: install libssl-dev")
    return built


def test_the_c_device_speaks_tls(built_with_tls: Path, tmp_path: Path) -> None:
    ca, other = TestCa(tmp_path / "ca"), TestCa(tmp_path / "other")
    node, device = ca.issue("node/1"), ca.issue("device/7/0")
    foreign = other.issue("device/7/0")
    folder = tmp_path / "data"
    NodeFolder(folder).found(2, part=Part(system=ca.system))
    files = {"certificate": str(node.certificate), "key": str(node.key), "trust": ca.bundle}
    own = {"WEIR_CERTIFICATE": str(device.certificate), "WEIR_KEY": str(device.key)}
    with running_node(folder, clients="require", plaintext="refuse", **files) as running:
        port = running.port
        with sync.connect(ca.url(port, ca.issue("user/default/ann"))) as client:
            client.create_topic("locks", partitions=2)
        code, out, said = run_demo(
            built_with_tls, port, "7", "1", "5", "3", WEIR_CA=ca.bundle, **own
        )
        assert code == 0, said
        lines = out.splitlines()
        assert [one.split()[1] for one in lines if one.startswith("sent")] == list("01234")
        assert sum(one.startswith("got") for one in lines) == 5, "one was sent twice, and is once"
        assert lines[-1] == "done"

        code, _, said = run_demo(built_with_tls, port, "7", "2", "1", WEIR_CA=other.bundle, **own)
        assert code == 1
        assert "certificate in certificate chain" in said
        named = {"WEIR_CA": ca.bundle, "WEIR_SERVER_NAME": "broker.example", **own}
        code, _, said = run_demo(built_with_tls, port, "7", "2", "1", **named)
        assert code == 1
        assert "hostname mismatch" in said
        mixed = {**own, "WEIR_KEY": str(foreign.key), "WEIR_CA": ca.bundle}
        code, _, said = run_demo(built_with_tls, port, "7", "2", "1", **mixed)
        assert code == 1
        assert "do not fit" in said


def certified(folder: Path, uri: str) -> tuple[Path, Path]:
    """Return a certificate for 127.0.0.1 that is its own CA, with a URI, and its key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "somebody")])
    host = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    built = (
        x509.CertificateBuilder()
        .subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(7)
        .not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([host, x509.UniformResourceIdentifier(uri)]), critical=False
        )
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    files = folder / "somebody.pem", folder / "somebody.key"
    files[0].write_bytes(built.public_bytes(Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


@pytest.mark.parametrize(
    ("uri", "is_node"),
    [
        ("weir://abc/0/node/1", True),
        ("weir://abc/0/user/default/node", False),
        ("weir://abc/node/1", False),
        ("https://abc/0/node/1", False),
    ],
)
def test_the_c_device_leaves_who_is_no_node(
    built_with_tls: Path, tmp_path: Path, uri: str, is_node: bool
) -> None:
    """Others have certificates as well, and do not answer as brokers by them."""
    certificate, key = certified(tmp_path, uri)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    came: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with (
                contextlib.suppress(OSError),
                context.wrap_socket(listening.accept()[0], server_side=True) as peer,
            ):
                came.append(peer.recv(4))
                peer.sendall(b"no frame of a broker")
                peer.recv(1)

        serving = threading.Thread(target=serve)
        serving.start()
        port = listening.getsockname()[1]
        command = [str(built_with_tls / "demo"), "127.0.0.1", str(port), "locks", "crew", "7", "1"]
        with subprocess.Popen(
            [*command, "1"], env={**os.environ, "WEIR_CA": str(certificate)},
            stderr=subprocess.PIPE, text=True,
        ) as device:  # fmt: skip
            serving.join(30)
            device.kill()
            assert device.stderr is not None
            said = device.stderr.read()
    assert ("of no node of a system" in said) is not is_node
    assert bool(came and came[0]) is is_node, "a device says hello to a node only"
