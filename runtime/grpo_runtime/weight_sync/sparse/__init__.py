"""`weightSync.sparse`: a backend around another one, which sends what changed to engines that can use that.

Only jobs with `weightSync.sparse` meet anything of it. `sender` compares the trainer's copies and knows which
engines can use what changed, `receiver` keeps what that changes, and `changes` is how it is found, written
and applied.
"""
