"""The server, the round, and the fleets that carry it out."""
