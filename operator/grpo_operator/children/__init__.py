"""Builders of a job's children. Pure: a run in, manifests out."""
