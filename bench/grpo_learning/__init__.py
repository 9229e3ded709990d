"""Whether the product learns: small jobs on this machine, each with the reward that it must reach.

`cases` is the list of them, `gates` decides, `runs` trains each as `grpo-runtime run` does, and `controls`
has rewards from which nothing about the task can be learned.
"""
