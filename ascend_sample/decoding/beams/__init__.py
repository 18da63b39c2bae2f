"""The beam searches, and what they share: rows and scores, where finished hypotheses go, the way back."""
