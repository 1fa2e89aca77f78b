"""Layouts asked from an engine: its render endpoint says how it lays out a chat, without running it."""
