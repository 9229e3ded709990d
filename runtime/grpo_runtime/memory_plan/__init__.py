"""How much memory a job needs on each GPU, before it runs: the formulas, and what follows from them.

What a job really uses is not measured here. `grpo_runtime.local` prints the plan.
"""
