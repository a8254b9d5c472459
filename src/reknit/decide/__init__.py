"""Diagnosis, world and policy in; one decision out, with the sentence that says why."""
