"""These strategies append one token to each row in each step: greedy search, sampling, contrastive search."""
