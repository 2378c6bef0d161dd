"""A whole exchange on one machine: its processes started, watched, started again, and measured."""
