"""Rates and burstiness of a live trace, or of a broker's topics, while they are made: Structured Streaming into tables.

A source (`publications`: a trace that grows; `broker`: an MQTT broker) hands Spark rows of packed `events`; `windows`
has Spark make cells and windows of them by its watermark and state store; `sink` publishes each batch once, `post`
sends its windows on; `job` runs all of it, one query for each run, since every run has its own clock.

`stream_pipeline` keeps the tables up to date and starts Spark; `read_stream_table` reads them and needs Arrow only.
"""

from triagemq.pipeline.streaming.job import StreamProgress, StreamResult, stream_pipeline
from triagemq.pipeline.streaming.reading import read_stream_table

__all__ = ["StreamProgress", "StreamResult", "read_stream_table", "stream_pipeline"]
