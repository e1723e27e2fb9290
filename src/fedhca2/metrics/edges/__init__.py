"""Edge maps against true boundaries: suppression, thinning, one-to-one matching, and odsF made of them."""
