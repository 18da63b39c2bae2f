"""Speculative sampling drafts tokens, judges them, and has rows that grow by different numbers of tokens."""
