"""A client: its training, evaluation and exchange with the server."""

from fedhca2.clients.client import BatchWatch, Client, LocalData
from fedhca2.clients.device import CompilingError, DeviceSlot, StepKind, Stopped, on_device
from fedhca2.clients.privacy import Privacy
from fedhca2.clients.state_file import ClientState, StateFileError, load_reply, load_state, save_reply, save_state
from fedhca2.clients.training import Schedule, Training
