"""The segment files of a log: their order, spare files, flushes and scrubs."""
