"""Comparing edge maps with true boundaries: suppression, thinning, one-to-one matching, and odsF from these."""
