"""GRPOJob v1alpha1: the object, its spec and its status. Every field here works.

What the pods read is in `contract`.
"""
