"""`weir spark`: the jobs of `weir.spark.jobs` as commands."""
