"""Prompts: where they come from, how they become token ids, and the order in which they are used, which a
checkpoint carries on.

Rewards of completions are in `rewards`.
"""
