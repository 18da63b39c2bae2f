"""What the layer has to do, in float64 and word by word: what tests go by."""
