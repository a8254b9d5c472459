"""Properties of the pure engine: a model world that misbehaves, and the laws that must hold whatever it does."""
