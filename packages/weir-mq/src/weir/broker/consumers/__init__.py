"""Consumer clusters, the leader's side: who is granted what, for how long, and what is done."""
