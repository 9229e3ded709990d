"""The rollout journal: what was sampled, scored and trained since the newest checkpoint, on disk.

Its records, a thread that writes them, a reader, and the journal as it is written and read: `journal` where a
step is trained on its own groups, `async_journal` where groups outlive steps. What a checkpoint holds is in
`trainer/checkpoint`.
"""
