"""The workloads of `ops.py`, by subject. Each module lists its cases in `CASES`: functions `(engines) -> rows`."""
