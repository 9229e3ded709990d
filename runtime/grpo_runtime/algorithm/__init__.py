"""The mathematics of GRPO, one idea a file; imports torch and nothing of ours outside this folder.

Shapes everywhere here: B sequences, T completion tokens (padded), G group size, V vocabulary, F reward
functions.

Much of it has no field in the spec yet: losses such as CISPO, SAPO and VESPO, KL, the off-policy mask, the
entropy filter. Tests hold the losses to TRL's values; `loss_options` in `trainer/learner.py` says what a job
can get.
"""
