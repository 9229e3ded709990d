"""GRPOJob v1alpha1. A field is here only when it works."""
