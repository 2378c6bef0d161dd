"""Rates and burstiness of a live trace while it is being written: Structured Streaming into a table.

`stream_pipeline` keeps the table up to date and starts Spark; `read_stream_table` reads it and needs Arrow only.
"""

from triagemq.pipeline.streaming.job import StreamProgress, StreamResult, stream_pipeline
from triagemq.pipeline.streaming.table import read_stream_table

__all__ = ["StreamProgress", "StreamResult", "read_stream_table", "stream_pipeline"]
