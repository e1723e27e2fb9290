"""A federation over a network: the SuperLink and the proxy in front of it, the sites, and secure aggregation."""
