"""What is known about faults, as data: one TOML row a fault, each with its source. To add a fault, add a row."""
