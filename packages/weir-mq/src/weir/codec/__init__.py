"""Bytes <-> fields and checksums: the floor that every format stands on."""
