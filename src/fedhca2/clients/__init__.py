"""A client, and how it trains and evaluates."""

from fedhca2.clients.client import BatchWatch, Client, Work
from fedhca2.clients.schedule import Schedule
from fedhca2.clients.training import Training

__all__ = ["BatchWatch", "Client", "Schedule", "Training", "Work"]
