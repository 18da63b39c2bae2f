"""The beam searches share rows and scores, a pool for finished hypotheses, and the way back from the last tokens."""
