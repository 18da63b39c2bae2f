"""Speculative sampling: who drafts, and how much; which drafts stay; rows that grow by different numbers of tokens."""
