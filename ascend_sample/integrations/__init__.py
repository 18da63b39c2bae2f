"""Adapters of the sampling layer for engines, one file each: transformers, vLLM, SGLang (docs/integrations.md)."""
