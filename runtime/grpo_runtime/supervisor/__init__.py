"""Process 1 of a trainer pod: forks the ranks, watches them, serves their progress, and ends with their
cause.

No torch here: it answers while training blocks. What a rank does is in `trainer`.
"""
