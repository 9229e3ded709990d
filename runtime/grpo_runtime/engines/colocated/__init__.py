"""Rollout engines in the training processes, or in a process beside each: rank 0 sends commands, and every
rank executes them on its engine.

`engines` is rank 0's end, `executor` that of the other ranks, `rank_engine` what both do with the engine of
their rank, `vllm_engine` that engine itself. In a process of its own it is served by `engine_child`; there
`child_engine` is the rank's end, and `recovering_engine` starts another one when it is lost. What starts and
ends that process is an `engine_process`: a child of the rank (`child_process`), or an actor of Ray (`ray`).
Engines in pods of their own are in `fleet`.
"""
