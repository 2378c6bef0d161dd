"""One decision: what is known now and what was decided before in; a plan, orders and reasons out. Pure."""
