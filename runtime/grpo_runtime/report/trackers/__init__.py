"""Services that people follow runs in: a file for each, behind a thread, so training never waits for them.

`registry` is the only list of them. What is written to files for every run is listed in `reporter.SINKS`.
"""
