"""The command ``kvroute``: run the stages, send requests, ask the audit store, look after topics and workers."""
