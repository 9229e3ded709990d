"""Completions that agents of the user make by calls of an API for chats, which the gateway answers.

`source` is rank 0's side: a session for each completion. The user's code runs in a process of its own
(`worker`).
"""
