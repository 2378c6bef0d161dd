"""The tables, one module each: its schema, what a row means, and `transform`, which makes it from other tables.

While a job runs, the rows of all its runs are in the same DataFrames, told apart by `run`, a small number; it becomes
`run_id` when a table is written. Grouping by a number instead of a text of 36 characters saves a quarter of the time.
"""
