from weir.spark.session import session

spark = session("closed")
flights = (
    spark.read.format("weir")
    .option("url", "weirs://ann@localhost:6800?ca=weir-ca/ca.pem")
    .option("passwordFile", "ann.password")
    .option("topic", "flights")
    .load()
)
origins = flights.selectExpr("CAST(key AS STRING) AS origin").groupBy("origin").count()
for row in origins.orderBy("origin").collect():
    print(row["origin"], row["count"])
