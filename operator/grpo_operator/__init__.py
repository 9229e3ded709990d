"""Turns GRPOJobs into pods and keeps their status true.

Data flows one way: watch events -> work queue -> observe -> plan (pure) -> apply.
"""
