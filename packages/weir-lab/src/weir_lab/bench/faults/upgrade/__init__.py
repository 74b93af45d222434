"""A set under load goes node by node from the release before to this one, back, and forth again."""
