"""These modules implement `StepModel`. Those of transformers import it, so `decoding` imports them on demand."""
