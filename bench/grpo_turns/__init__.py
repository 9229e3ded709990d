"""What a turn of an agent takes beside its sampling, by each kind of environment: the same chat with a
calculator, behind engines that answer at once.

`kinds` is the list of them, `agents` and `program` have their code, `measure` plays their episodes, and
`figures` says what a turn and an episode took.
"""
