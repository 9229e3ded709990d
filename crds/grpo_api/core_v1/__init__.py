"""Parts of a pod as the Kubernetes API defines them: `types.py`, written by `generate.py`.

What a GRPOJob may say of them, and what it may not, stands in `v1alpha1/spec/pod_template.py`.
"""
