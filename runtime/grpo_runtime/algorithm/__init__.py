"""The mathematics of GRPO, one idea a file; imports torch and nothing of ours outside this folder.

Shapes everywhere here: B sequences, T completion tokens (padded), G group size, V vocabulary, F reward
functions. `registry` lists every loss, correction, scaling and KL estimator by name, and says which of them a
job can ask for. An option is a field of `LossOptions` in `types`, with its formula in a file that `losses`
calls, and a field of the same name in the spec.
"""
