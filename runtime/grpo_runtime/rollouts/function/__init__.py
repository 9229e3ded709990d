"""Completions of several turns, made by a coroutine of the user: sampling.rolloutFunction.

`turns` is rank 0's side: it asks the engines for the next turn of all completions at once, and keeps what
they sampled (`transcript`). The user's code runs in a process of its own (`worker`), which may hang or die
without the trainer, until every completion waits for its next turn; `conversation` is what it gets.
"""
