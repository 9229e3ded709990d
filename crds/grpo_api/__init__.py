"""The GRPOJob API and the contract between the operator and the runtime.

It imports the standard library and pydantic only, because the operator and tools use it without torch, and
the pods use it without a Kubernetes client.
"""
