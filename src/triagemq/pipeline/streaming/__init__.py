"""Rates and burstiness of a live trace, or of a broker's topics, while they are made: Structured Streaming into tables.

A source (`publications`: a trace that grows; `broker`: an MQTT broker) hands Spark rows of packed `events`; Spark
makes cells of them by its watermark and state store (`queries`: one for each run, since every run has its own clock),
of which `windows` are made; `sink` publishes each batch once, `post` sends its windows on; `job` runs all of it.

`stream_pipeline` keeps the tables up to date; they are read like all others (`triagemq.pipeline.Tables`).
"""

from triagemq.pipeline.streaming.job import StreamProgress, StreamResult, stream_pipeline

__all__ = ["StreamProgress", "StreamResult", "stream_pipeline"]
