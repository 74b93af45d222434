from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()


@dp.table
def bronze():
    """Every message of the topic, once: each run continues where the last one ended."""
    return (
        spark.readStream.format("weir")
        .option("url", "weir://localhost:6800")
        .option("topic", "locks")
        .load()
    )


@dp.materialized_view
def per_partition():
    return spark.read.table("bronze").groupBy("partition").count()
