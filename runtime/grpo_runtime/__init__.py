"""What runs in the pods of a GRPOJob, and the same as local processes: trainer, rollout engines, weight sync.

`cli` is the way in. Kubernetes is not known here: `settings` reads what a pod is given.
"""
