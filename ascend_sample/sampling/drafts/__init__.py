"""Drafts of speculative decoding: their places as rows of a batch, and how they are judged."""
