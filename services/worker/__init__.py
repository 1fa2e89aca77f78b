"""The agent beside one engine: runs its work, publishes what its KV cache holds, proves its layout, keeps its lease."""
