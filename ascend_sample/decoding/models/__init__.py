"""Implementations of `StepModel`. Those of transformers import it, so they are imported when they are asked for."""
