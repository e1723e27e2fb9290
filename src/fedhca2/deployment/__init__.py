"""Using trained models: predictions for any image, and files for other programs."""

from fedhca2.deployment.trained import Trained as Trained
