"""What a step of a batch does: routes, draws, and what it reports."""
