"""Makes one immutable view of a job from what the cluster says.

The cache, the state of this process, what a pod's status and Events mean, and what the trainer reports.
What follows from it is decided in `plan`, which nothing here imports.
"""
