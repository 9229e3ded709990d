"""The commands of `grpo-runtime`: their help, their arguments and what they run.

Every import of what a command runs is local to it: the supervisor must stay small, and neither it nor
`validate` of a job without GPUs may load torch. `cli` has the list of them.
"""
