"""Whether the product learns: small jobs on this machine, each with the reward that it must reach.

`cases` is the list of them, `gates` decides, `runs` trains each as `grpo-runtime run` does, and `controls`
has rewards from which nothing about the task can be learned. `chat_policy` makes a model that can call a
tool, and `chat_agents` has the ways in which it is asked.
"""
