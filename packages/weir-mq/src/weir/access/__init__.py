"""Authentication: passwords, tokens, devices' proofs and secrets at rest, as pure functions.

Nothing here reads a clock, a file or a random source: times, nonces and salts are arguments.
"""
