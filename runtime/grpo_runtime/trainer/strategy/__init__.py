"""How the policy is spread over the ranks: a protocol, and one file for each way.

The optimizer and the loss are the same for all of them and are not here.
"""
