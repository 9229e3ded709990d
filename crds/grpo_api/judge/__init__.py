"""Why attempts end and what follows, decided in one place for the operator, for local mode and for the
supervisor of a trainer pod. Pure: what has happened and `now` are parameters.

`clocks` says what a report shows and which clock runs, `causes` what ended an attempt, `attempts` what
follows, and `engines` when an engine that fails or hangs ends or is replaced.
"""
