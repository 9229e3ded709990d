"""Reward functions: the built-in ones, how a user's are found, and where they are called.

`builtin` has the built-in ones, `kinds` a row for each kind, and `pool` all functions of a run. Code is
called in worker processes (`worker`), so that one that hangs cannot hang the run; services are called over
HTTP (`service`).
`tolerance` says which failures end a run. How rewards become advantages is in `algorithm`.
"""
