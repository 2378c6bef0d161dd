"""Scenario files: YAML, or a directory with YAML and Parquet tables, read into a Scenario and written from one.

In comes the text of a file; out comes a Scenario with its Conditions, or a ScenarioError with every problem in the file
at once, each with its line, its field, what is wrong and what to write. On the way:

- `loading` opens the files and leads through the rest;
- `yaml_lines` makes values of the text, and knows the line of each;
- `reading` checks them against `document`, the one model of a file; numbers may have the units in `quantities`;
- `rows` (YAML) and `parquet` bring publications and subscriptions as columns, `rules` says what these may be;
- `references` checks what entries say of each other, and what is published and wanted against the network;
  `clusters` does so for clusters of brokers;
- `explain` puts all that is wrong into words.

`saving` writes, in plain numbers of base units.
"""

from triagemq.scenario.files.loading import (
    check,
    load,
    load_with_conditions,
    loads,
    loads_with_conditions,
)
from triagemq.scenario.files.saving import dumps, save

__all__ = [
    "check",
    "dumps",
    "load",
    "load_with_conditions",
    "loads",
    "loads_with_conditions",
    "save",
]
