"""The tables: their schemas, what a row means, and functions that make them from other tables; a summary stands with
the table that it sums up.

While a job runs, the rows of all its runs are in the same DataFrames, distinguished by `run`, a small number, which is
`run_id` in a written table. Grouping by a number instead of a text of 36 characters saves a quarter of the time.
"""
