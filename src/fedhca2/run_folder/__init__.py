"""A run's folder: who reads it, who writes it, and what its files are called. No other package knows the names."""
