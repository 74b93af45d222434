"""weir in Spark: `format("weir")` as a Structured Streaming source, sessions, and jobs to run.

Needs the extra `weir-mq[spark]`. Importing this package loads neither Spark nor Arrow.
"""
