"""Rollout engines in the training processes: rank 0 sends commands, and every rank executes them on its
engine.

`coordinator` is rank 0's end, `executor` that of the other ranks, `rank_engine` what both do with the engine
of their rank, `vllm_engine` that engine itself. Engines in pods of their own are in `fleet`.
"""
