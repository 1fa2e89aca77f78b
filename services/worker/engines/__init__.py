"""One adapter per engine: its event forms in, engine-neutral events out (``events``). Pure."""
