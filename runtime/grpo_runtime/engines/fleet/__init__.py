"""Rollout engines in pods of their own, as the trainer sees them: who is there, weights, work, HTTP.

The other end, the server in the pod, is in `serve`.
"""
