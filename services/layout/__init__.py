"""Templates, tokens, media: the routing view of a request, its token list as the worker's model sees it."""
