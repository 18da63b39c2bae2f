"""Sampling as a serving engine calls it: exact distributions, and results that do not depend on the other rows."""
