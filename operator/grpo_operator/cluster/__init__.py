"""The edge to the Kubernetes API: the client, the watch, the Lease, the kinds of objects, and their errors.

The only folder that knows kopf or the Kubernetes client. What the objects mean for a job is not here.
"""
