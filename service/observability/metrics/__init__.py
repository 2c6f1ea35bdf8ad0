"""The package declares every Prometheus metric once, and turns answers, requests and engine steps into observations. It
knows no HTTP and no text.

Names follow vLLM's stems under the prefix `dosirak_`, so that dashboards carry over. Labels are bounded: models and
versions that were served, route templates (never raw paths), status codes, error codes.
"""

from service.observability.metrics.compat import VLLM
from service.observability.metrics.families import PREFIX
from service.observability.metrics.histograms import FELT, spaced
from service.observability.metrics.inventory import KINDS, Inventory, Served
from service.observability.metrics.metrics import CONTENT_TYPE, METHODS, OTHER, Metrics
from service.observability.metrics.recorder import Abort, Measured, ModelMetrics

__all__ = [
    "CONTENT_TYPE",
    "FELT",
    "KINDS",
    "METHODS",
    "OTHER",
    "PREFIX",
    "VLLM",
    "Abort",
    "Inventory",
    "Measured",
    "Metrics",
    "ModelMetrics",
    "Served",
    "spaced",
]
