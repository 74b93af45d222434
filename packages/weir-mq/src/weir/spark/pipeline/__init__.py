"""A pipeline: topics to bronze, silver and gold tables of a lake, and on to SQL and topics.

A folder holds `pipeline.toml` and the functions `silver.py` and `gold.py`; `weir pipeline` runs it.
Every layer reads the one below by stamps, so after a round all tables are as of one cut.
"""
