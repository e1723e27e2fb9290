"""What local training adds to the tasks' own losses."""

from fedhca2.objectives.attracted import Attracted
from fedhca2.objectives.frozen import Frozen
from fedhca2.objectives.objective import Anchor, Objective, squared_distance
from fedhca2.objectives.personal_copy import PersonalCopy
from fedhca2.objectives.proximal import Proximal

__all__ = ["Anchor", "Attracted", "Frozen", "Objective", "PersonalCopy", "Proximal", "squared_distance"]
