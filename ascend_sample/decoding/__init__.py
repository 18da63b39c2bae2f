"""Decoding: search and sampling strategies, batched, over any model that computes steps. See docs/decoding.md."""
