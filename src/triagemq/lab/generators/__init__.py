"""The papers' situations as scenarios made by rule: Table 2 of PrioDeX, and its prototype."""

from triagemq.lab.generators.prototype import prototype
from triagemq.lab.generators.table2 import table2

__all__ = ["prototype", "table2"]
