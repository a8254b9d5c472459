"""The port through which the engine's commands reach a scheduler, and its adapters."""
