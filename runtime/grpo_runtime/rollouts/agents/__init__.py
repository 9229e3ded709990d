"""Completions that are made by calls of an API for chats, which the gateway answers.

`source` is rank 0's side: a session for each completion. What makes the calls runs in a process of its own
(`worker`), by the kind of the environment (`kinds`): a `coroutine` of the user, or `tools`.
"""
