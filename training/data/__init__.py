"""Sources: raw items by index."""
