"""The GRPOJob API and the contract between the operator and the runtime.

Standard library and pydantic only: this package is imported by the operator, by every pod and by tools
that must not pull in torch or a Kubernetes client.
"""
