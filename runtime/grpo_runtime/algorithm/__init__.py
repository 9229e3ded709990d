"""The mathematics of GRPO, one idea a file; imports torch and nothing of ours outside this folder.

Shapes everywhere here: B sequences, T completion tokens (padded), G group size, V vocabulary, F reward
functions. `registry` lists every loss and option by name, and says which of them a job can ask for.
"""
