"""Sampling where each rank of a group has the logits of a part of the vocabulary: docs/vocabulary_parallel.md."""

from ascend_sample.sampling.vocabulary_parallel.exchange import Exchange, ProcessGroupExchange
from ascend_sample.sampling.vocabulary_parallel.shard import VocabularyShard

__all__ = ["Exchange", "ProcessGroupExchange", "VocabularyShard"]
