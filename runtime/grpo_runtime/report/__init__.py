"""What a job reports: progress for the operator, metrics and samples of its steps, a page and a plot of it.

`metrics` lists every metric of a step, and `reporter` gives a finished step to every sink.

Checkpoints and models are in `trainer/checkpoint` and `model`.
"""
