"""Carries out a plan: status, Events, deletions, children, and what a refusal of the API server means.

Nothing is decided here.
"""
