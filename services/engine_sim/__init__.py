"""A simulated engine that speaks what the agent uses of vLLM 0.32: OpenAI HTTP, KV events over ZMQ, replay, metrics."""
