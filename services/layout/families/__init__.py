"""Model families: how each lays out its media. Found by the checkpoint's config, never by its folder's name."""
