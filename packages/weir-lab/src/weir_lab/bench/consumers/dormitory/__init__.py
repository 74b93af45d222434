"""The paper's experiment (SmartDep §3): a smart dormitory's locks all report within a second.

Three platforms keep each record by one committed inbox insert in the same PostgreSQL: locks that
ask a server directly, and locks in front of a broker, weir or ActiveMQ, with handlers behind it.
"""
