"""Prompts in: where they come from, in which order, and the seed of each sample."""
