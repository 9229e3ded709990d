"""The commands of `grpo-runtime`: a file for each, with its help, its arguments and what it runs.

Every import of what a command runs is local to it: the supervisor must stay small, and neither it nor
`validate` of a job without GPUs may load torch. `cli` has the list of them.
"""
