"""Where the time went: every second of a job is booked to exactly one phase, from events alone."""
