"""Metrics of a validation split, each with a pure function over counts and a small accumulator."""

from fedhca2.metrics.delta_m import delta_m, relative_gain, rise
from fedhca2.metrics.edges import OdsF, edge_rules
from fedhca2.metrics.metric import Accuracy, CorrectKeypoints, MeanAveragePrecision, Metric, Over, VectorMAE, VectorRMSE
from fedhca2.metrics.pixels import AngularError, DepthRMSE, MaxF, MeanIoU, SalientIoU, SalientIoUOfImages
