"""`weir demo`: three airports, one node, a consumer cluster and Spark, and their ledgers compared.

run.py       starts everything, waits, stops everything
airports.py  the producers, a process each    crew.py     the cluster's consumers
flights.py   what is replayed                 pipeline.py the Spark job's process
ledger.py    what was sent against what came  report.py   what is told at the end
"""
