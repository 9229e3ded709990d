"""How much memory a job needs on each GPU and in each pod, before it runs: the formulas, and what follows.

What a job really uses is not measured here. `grpo_runtime.local` prints the plan.
"""
