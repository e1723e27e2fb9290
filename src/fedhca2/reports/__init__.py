"""What a run looks like: tables and progress."""
