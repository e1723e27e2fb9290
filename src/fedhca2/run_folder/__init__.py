"""A run's folder: reading it, writing it, and the names of its files. No other package knows these names."""
