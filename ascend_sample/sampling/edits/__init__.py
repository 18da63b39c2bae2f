"""What requests change about logits before they are sampled, and what they remember."""
