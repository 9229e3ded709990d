"""Rollout engines as the trainer sees them.

`interface` is what the training loop asks for; `fleet` keeps it with vLLM engines in other pods, through
`membership` (who is there), `engine_sync` (weights), `dispatch` (work) and `engine_client` (HTTP).
"""
