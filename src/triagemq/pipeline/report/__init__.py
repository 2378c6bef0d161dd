"""The report: finished tables as one HTML page that a person can open, send and keep. No Spark, no network."""

from triagemq.pipeline.report.write import report_tables, write_report

__all__ = ["report_tables", "write_report"]
