"""`grpo-runtime follow`: a vLLM server on the newest weights that a job with `weightSync.disk` writes, in its
cluster or another. It needs nothing of the job but its store, and outlives it.

`main` starts the server, `follower` brings each version here and gives it to the engine, and `openai_guard`
lets callers in.
"""
