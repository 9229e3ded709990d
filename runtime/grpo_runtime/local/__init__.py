"""`grpo-runtime run` and `validate`: a GRPOJob without Kubernetes, its pods' processes on this machine.

What those processes do is the same as in a pod, and not here.
"""
