"""A client, and how it trains and evaluates."""

from fedhca2.clients.capture import CompilingError
from fedhca2.clients.client import BatchWatch, Client, Work
from fedhca2.clients.privacy import Privacy
from fedhca2.clients.schedule import Schedule
from fedhca2.clients.state_file import ClientState, StateFileError, load_state, save_state
from fedhca2.clients.training import Training
from fedhca2.clients.workplace import StepKind, Workplace, at_work

__all__ = [
    "BatchWatch",
    "Client",
    "ClientState",
    "CompilingError",
    "Privacy",
    "Schedule",
    "StateFileError",
    "StepKind",
    "Training",
    "Work",
    "Workplace",
    "at_work",
    "load_state",
    "save_state",
]
