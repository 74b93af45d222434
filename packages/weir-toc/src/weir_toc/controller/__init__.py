"""The controller: it decides which processes have failed, and at which stamp."""
