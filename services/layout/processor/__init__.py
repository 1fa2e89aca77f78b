"""Layouts made by transformers' own processors, in processes of their own: for models that no family is known of."""
