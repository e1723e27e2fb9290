"""Three clients with different tasks in one federation."""
