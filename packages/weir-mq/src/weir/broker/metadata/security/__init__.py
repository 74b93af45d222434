"""Access control in the registry: users, rules, token keys, fleets, and their secrets."""
