"""A model of tiers: a core, and relays below it, of the state machines that ship (`weir.relay`)."""
