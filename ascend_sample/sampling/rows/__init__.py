"""What rows are sampled with: parameters of tensors and of requests, on the host and on the device."""
