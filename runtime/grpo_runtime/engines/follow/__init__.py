"""`grpo-runtime follow`: a vLLM server on the newest weights that a job with `weightSync.disk` writes, in its
cluster or another. It needs nothing of the job but its store, and outlives it.

`versions` brings a version here and checks it, `follower` updates the engine, `guard` lets callers in.
"""
