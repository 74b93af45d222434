"""A Spark cluster on this machine, in its standalone mode, and jobs that are submitted to it.

Its master and workers have environments of their own, without weir: what a job needs is shipped
with it, packed, as to machines that have nothing but Spark.
"""
