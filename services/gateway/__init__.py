"""Gateway: OpenAI requests over HTTP in, answers out, each bound to the attempt whose output came first."""
