"""What a job reports: progress for the operator, metrics for people and dashboards, a plot for the terminal.

Checkpoints and models are in `trainer/checkpoint` and `model`.
"""
