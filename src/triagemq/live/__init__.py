"""Whole exchanges on one machine: `triage up`, and `triage emulate` in a network of namespaces."""
