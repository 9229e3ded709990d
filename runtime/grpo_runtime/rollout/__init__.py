"""What the training loop asks of rollout engines, and what both kinds of engines share: sampling, errors.

Engines in pods of their own are in `fleet`, engines in the training processes in `colocated`.
"""
