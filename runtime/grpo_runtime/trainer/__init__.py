"""A training process: the loop, the policy, the optimizer, and how the ranks of a run meet.

`loop` reads like the algorithm, whose formulas are in `algorithm`. How the weights are spread over ranks is
in `strategy`, what is saved in `checkpoint`; process 1 of the pod is in `supervisor`.
"""
