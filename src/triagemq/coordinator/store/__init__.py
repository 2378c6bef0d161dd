"""What survives a restart: the tables, the changes, and the one writer."""
