"""What clients have announced: checked, kept as records, leased, and turned into the tables of a Scenario."""
