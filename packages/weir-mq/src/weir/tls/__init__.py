"""TLS between bytes and protocol, for both ends: records, handshakes, certificates."""
