"""The rollout journal: what was sampled, scored and trained since the newest checkpoint, on disk.

A file format, its records, a thread that writes them, a reader, and the journal that the loop uses. What a
checkpoint holds is in `checkpoint`.
"""
