"""Rollout engines in the training processes, or in a process beside each. Engines in pods of their own are in
`fleet`.

`engines` sends rank 0's commands to every rank, which executes them, by `rank_messages`; `engine_slice` says
which engine and which requests are a rank's. `rank_engine` is what a rank does with its engine: wake, load,
verify, generate, sleep.

An engine in a process of its own is served there by `engine_child`. `child_engine` is the rank's end,
`child_messages` what goes between the two, `child_liveness` whether it hangs, and `recovering_engine` starts
another one when it is lost. What starts and ends that process is an `engine_process`: a child of the rank, or
an actor of Ray (`ray`).
"""
