"""The embedded orchestrator: a gang of real processes on virtual nodes of this machine."""
