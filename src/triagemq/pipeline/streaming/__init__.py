"""Rates and burstiness of a live trace, or of a broker's topics, while they are made: Structured Streaming into tables.

`sources` hand Spark rows of packed `events`, of a trace that grows or of an MQTT broker; Spark makes cells of them by
its watermark and state store (`queries`: one for each run of `runs`, since every run has its own clock), of which
`windows` are made and published batch by batch; `job` runs all of it.

`stream_pipeline` keeps the tables up to date; they are read like all others (`triagemq.pipeline.Tables`).
"""

from triagemq.pipeline.streaming.job import StreamProgress, StreamResult, stream_pipeline

__all__ = ["StreamProgress", "StreamResult", "stream_pipeline"]
