from pyspark.sql import SparkSession

spark = SparkSession.builder.remote("sc://localhost:15002").getOrCreate()
locks = (
    spark.read.format("weir").option("url", "weir://localhost:6800").option("topic", "locks").load()
)
for row in locks.groupBy("partition").count().orderBy("partition").collect():
    print(row.partition, row["count"])
spark.stop()
