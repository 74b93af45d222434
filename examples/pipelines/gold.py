from pyspark.sql import DataFrame


def paid(orders: DataFrame, payments: DataFrame) -> DataFrame:
    return orders.alias("o").join(payments.alias("p"), "id").selectExpr("id", "o.n", "p.n paid")
