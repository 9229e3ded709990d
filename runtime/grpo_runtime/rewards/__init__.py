"""Rewards: what a completion was worth, computed outside the trainer process, within a deadline."""
