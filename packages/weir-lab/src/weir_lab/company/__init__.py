"""The company of the paper on BrokerSets: data centres in six cities, in three tiers.

`sites` has its data centres and the links between them, `office` is the process of a city's
clients, `nodes` runs all brokers, and `run` measures and judges.
"""
