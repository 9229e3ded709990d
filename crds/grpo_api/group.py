"""The API group of GRPOJobs, which is also the prefix of their labels."""

GROUP = "grpo.dev"
