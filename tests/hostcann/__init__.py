"""hostcann: its runtime at the C level, collectives, the operators made of ATen, its activation and its profile."""
