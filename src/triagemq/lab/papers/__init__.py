"""The papers' experiments: what was run, what was printed, and our figures.

`registry` has them by paper and figure, `experiment` says what one is, `runs` what they share, `page` and `plotting`
show what was found. Each of the others is one experiment, with the text that explains where it parts from the paper;
`midas`, `shi` and `peer_wd` are folders of them.
"""

from triagemq.lab.papers.experiment import (
    Claim,
    Difference,
    Effort,
    Experiment,
    Findings,
    Panel,
    PrintedTable,
    Series,
)
from triagemq.lab.papers.page import Files, write_files
from triagemq.lab.papers.paper_model import paper_latency
from triagemq.lab.papers.registry import PAPERS, Reproduction, experiment, figures_of, reproduce
from triagemq.lab.papers.runs import OnSpark
from triagemq.lab.sweep.cases import forget_cases

__all__ = [
    "PAPERS",
    "Claim",
    "Difference",
    "Effort",
    "Experiment",
    "Files",
    "Findings",
    "OnSpark",
    "Panel",
    "PrintedTable",
    "Reproduction",
    "Series",
    "experiment",
    "figures_of",
    "forget_cases",
    "paper_latency",
    "reproduce",
    "write_files",
]
