"""The server, the round loop, and the fleets of clients."""
