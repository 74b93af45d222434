"""Consumer clusters, the leader's side: grants, their leases, and messages that are done."""
