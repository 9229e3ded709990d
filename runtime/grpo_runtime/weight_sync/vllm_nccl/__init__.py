"""The backend that speaks to vLLM's own nccl engine, which loads weights while they arrive."""
