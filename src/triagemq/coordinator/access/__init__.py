"""Who may do what: tokens, and what follows from them at the gateway and the broker."""
