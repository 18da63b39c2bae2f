"""The subword vocabulary: byte-level BPE, learned from the corpus by the `tokenizers` package."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 0  # special tokens come first in the vocabulary


def train_tokenizer(documents: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learns a vocabulary; the same documents always give the same one.

    Args:
        documents: the texts to learn from.
        vocab_size: the number of tokens: `END_OF_TEXT`, the 256 bytes, and the most frequent merges.

    Returns:
        A tokenizer that encodes any text without loss.

    Raises:
        RuntimeError: the documents are too few to fill the vocabulary.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise RuntimeError(
            f"train_tokenizer: documents must hold enough text for vocab_size {vocab_size}, "
            f"got {tokenizer.get_vocab_size()} tokens. Ask for a smaller vocabulary or give more text."
        )
    return tokenizer


def encode_documents(tokenizer: Tokenizer, documents: list[str]) -> list[int]:
    """Returns the ids of all documents in one row, each behind an `END_OF_TEXT` that tells where it begins."""
    return [token for encoding in tokenizer.encode_batch(documents) for token in (END_OF_TEXT_ID, *encoding.ids)]


def encode_prompt(tokenizer: Tokenizer, text: str) -> list[int]:
    """Returns the ids of the beginning of a text, as `encode_documents` would write it."""
    return encode_documents(tokenizer, [text])


def decode_texts(tokenizer: Tokenizer, token_ids: list[int]) -> list[str]:
    """Returns the texts in `token_ids`, which `END_OF_TEXT` parts; the one in front of the first text parts nothing."""
    ids = token_ids[1:] if token_ids[:1] == [END_OF_TEXT_ID] else token_ids
    texts: list[list[int]] = [[]]
    for token in ids:
        if token == END_OF_TEXT_ID:
            texts.append([])
        else:
            texts[-1].append(token)
    return [tokenizer.decode(text) for text in texts]
