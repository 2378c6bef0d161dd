"""Scenario files: YAML, or a directory with YAML and Parquet tables, read into a Scenario and written from one.

In comes the text of a file; out comes a Scenario with its Conditions, or a ScenarioError with Problems, each with its
line, its field, what is wrong and what to write:

- `loading` opens the files and leads through the rest;
- `reading` makes values of the text, with the line of each, and checks them against `document`, the model of a file;
- `references` checks names, then what entries say of each other, and what is published and wanted against the network;
- `rows` (YAML) and `parquet` bring publications and subscriptions as columns, by one set of rules;
- `explain` reads numbers with units, and puts all that is wrong into words.

Each of these steps raises all that it finds, and the next one begins with what is valid.

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
