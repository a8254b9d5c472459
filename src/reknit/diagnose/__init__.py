"""Signals in, a diagnosis out: which signal is the root, who is to blame, how sure we are."""
