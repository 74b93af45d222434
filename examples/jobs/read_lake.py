from weir.spark.jobs.archive import read
from weir.spark.session import session

spark = session()
kept = read(spark, "lake")  # the lake as a table, with a topic's columns
whole = read(spark, "lake", tail="weir://localhost:6800")  # and what came since, each once
print(kept.count(), whole.count())
