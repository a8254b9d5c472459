"""Reknit: autonomous recovery for multi-node GPU training.

Kept empty on purpose: a training script that imports `reknit.progress` must pay for nothing else.
"""
