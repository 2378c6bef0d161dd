"""Scenarios made by rule: the papers' tables, a building on fire, what was measured. Pure functions of their arguments.

`table2` and `prototype` are the papers', `building` is ours; `columns` has what their tables have in common. `measured`
makes one of what the pipeline found out about publications.
"""

from triagemq.scenario.generators.building import building
from triagemq.scenario.generators.prototype import prototype
from triagemq.scenario.generators.table2 import table2

__all__ = ["building", "prototype", "table2"]
