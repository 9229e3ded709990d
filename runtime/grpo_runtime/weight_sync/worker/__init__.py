"""What vLLM loads into its workers: the plugin that registers the backends, and the class that it calls."""
