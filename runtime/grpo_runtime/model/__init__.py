"""The policy as files: where models come from, how they are loaded and saved, and the names of their weights.

How a policy is trained is in `trainer`.
"""
