"""From a decision to steps: the states that an incident's branches pass through, and what moves them."""
