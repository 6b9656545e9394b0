"""The highest rate of requests that a system serves within its latency objectives, found by probing.

`config` reads the jobs, `search` chooses the rates, `probe` runs one of them, `worker` and `pool` run jobs in
processes of their own, `report` and `plot` show what was found.
"""
