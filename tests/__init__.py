"""The tests. Helpers of several folders are in tests.support."""
