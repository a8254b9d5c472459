"""The vocabulary: what every other room speaks about, as frozen structs without behaviour of their own.

Nothing here reads a clock, a file or a random number; times are seconds since the epoch (float) unless a name says
otherwise, sizes are bytes, costs are GPU-hours.
"""
