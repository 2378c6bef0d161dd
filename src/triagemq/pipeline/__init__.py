"""The data pipeline on Spark: what happened becomes tables. Reading finished tables needs Arrow only.

`run_pipeline` starts Spark when there is something to compute; `Tables` reads what it published; `estimate_scenario`
estimates a Scenario from it. Importing this package imports no Spark.
"""

from triagemq.pipeline.mapping import Mapping, load_mapping
from triagemq.pipeline.reading import Tables, estimate_scenario
from triagemq.pipeline.run import PipelineResult, run_pipeline
from triagemq.pipeline.session import SparkOptions, spark_session

__all__ = [
    "Mapping",
    "PipelineResult",
    "SparkOptions",
    "Tables",
    "estimate_scenario",
    "load_mapping",
    "run_pipeline",
    "spark_session",
]
