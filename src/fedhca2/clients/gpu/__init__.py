"""What makes clients fast on a GPU: captured and compiled steps, and several clients at a time."""
