"""Explains errors of TLS, and says what to do about them."""

from __future__ import annotations

import ssl

#: By what OpenSSL calls an alert: what the other side says by it, to a client.
_ALERTS = {
    "CERTIFICATE_REQUIRED": "the broker asks for a certificate of this client, and it gave none: "
    "give certificate and key (`weir cert issue user NAMESPACE/NAME` makes them)",
    "CERTIFICATE_EXPIRED": "the broker says that the certificate of this client has expired: renew "
    "it (`weir cert renew`)",
    "CERTIFICATE_REVOKED": "the broker says that the certificate of this client is revoked: get "
    "another one",
    "UNKNOWN_CA": "the broker does not know the CA of this client's certificate: use one of the "
    "set's own CA, or add the CA to tls.trust there",
    "BAD_CERTIFICATE": "the broker does not accept the certificate of this client: it is not valid "
    "yet, or damaged; check it by `weir cert list`",
    "UNSUPPORTED_CERTIFICATE": "the broker does not accept this client's certificate: it is not "
    "made for clients",
    "CERTIFICATE_UNKNOWN": "the broker does not accept the certificate of this client",
    "PROTOCOL_VERSION": "the broker takes newer versions of TLS only: TLS 1.3, or 1.2 where "
    "tls.minimum says so",
    "HANDSHAKE_FAILURE": "the broker accepts none of the ciphers of this side",
    "NO_APPLICATION_PROTOCOL": "the server speaks TLS, and is no broker",
    "UNRECOGNIZED_NAME": "the server does not know the name that the client asked for",
}
#: By a part of what OpenSSL says of a certificate: what to do.
_VERIFYING = (
    ("has expired", "renew it there (`weir cert renew`); and check the clock of this machine"),
    ("not yet valid", "check the clocks of both machines"),
    ("self-signed", "give the CA of the set: ca=..., the file ca.pem of `weir cert init`"),
    ("self signed", "give the CA of the set: ca=..., the file ca.pem of `weir cert init`"),
    ("unable to get", "give the CA of the set: ca=..., the file ca.pem of `weir cert init`"),
    ("signature failure", "its CA has only the name of the one that is trusted here"),
    ("mismatch", "dial a name that is in it, or issue it with `--host NAME`, or give server_name"),
    ("purpose", "it is not of a broker, but of a client"),
)


def in_words(error: ssl.SSLError, side: str = "the broker") -> str:
    """Return what an error of TLS means, and what to do; `side` names the peer."""
    if isinstance(error, ssl.SSLCertVerificationError):
        said = error.verify_message
        advice = next((text for part, text in _VERIFYING if part in said.lower()), "check it")
        said = said.rstrip(".")
        return f"the certificate of {side} is not accepted here: {said}. To mend that: {advice}"
    reason = error.reason or ""
    _, alert, name = reason.partition("ALERT_")
    if alert and name in _ALERTS and side == "the broker":
        return _ALERTS[name]
    if alert:
        return f"{side} ended TLS: {_plain(name)}"
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"):
        return f"{side} does not answer in TLS: it may take weir:// only, or be no broker"
    if reason in ("UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE", "VERSION_TOO_LOW"):
        return f"{side} has no version of TLS that is accepted here: TLS 1.3 is, and 1.2 if allowed"
    if reason == "NO_SHARED_CIPHER":
        return f"{side} has no cipher that is accepted here"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return f"{side} gave no certificate, and one is required"
    return f"TLS failed: {_plain(reason) or error}"


def _plain(reason: str) -> str:
    return reason.replace("_", " ").lower()
