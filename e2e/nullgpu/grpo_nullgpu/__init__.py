"""A GPU that computes nothing, and programs that run on it. Its page is docs/null-gpu.md."""
