"""Watching streaming queries of `format("weir")`: figures for collectors, and readers with names.

`weir.spark.watch` starts it. A listener keeps what Spark reports of each micro-batch; a thread
tells the broker how far each query is; a page shows both to Prometheus.
"""
