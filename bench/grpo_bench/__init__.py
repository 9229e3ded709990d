"""Two ways of doing the same thing, measured in turn.

`pairs`, `report` and `same_tokens` are pure. `command_line` is what the scripts beside this package have in
common. `two_starts` and `two_samplings` are what they measure, with the processes of an `example_job`.
"""
