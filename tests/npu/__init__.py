"""The NPU path through the real torch_npu: order, capture, memory, faults, routes, and its built-in as a witness."""
