"""Who comes in and what they may do: users, rules, token keys, fleets, and their secrets."""
