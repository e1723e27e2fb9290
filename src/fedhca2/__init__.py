"""Federated multi-task learning among clients that do not share a task list."""
