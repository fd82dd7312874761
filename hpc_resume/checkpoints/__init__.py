"""Saved state: `catalog` knows what lies on disk and needs no torch, `store` writes and loads it."""
