"""What operator and runtime agree on: what the operator writes for the pods, and what the pods report.

Each module is one part of it, and `versions.SCHEMA_VERSION` covers all of them. The GRPOJob itself is in
`v1alpha1`.
"""
