"""The messages kvroute puts into Kafka: typed, versioned, unknown fields ignored. One module a message."""
