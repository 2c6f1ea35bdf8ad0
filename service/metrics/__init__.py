"""The package declares every Prometheus metric once, and turns answers, requests and engine steps into observations. It
knows no HTTP and no text.

Names follow vLLM's stems under the prefix `dosirak_`, so that dashboards carry over. Labels are bounded: models and
versions that were served, route templates (never raw paths), status codes, error codes.
"""

from service.metrics.buckets import FELT, spaced
from service.metrics.compat import VLLM
from service.metrics.families import PREFIX
from service.metrics.inventory import KINDS, Inventory, Served
from service.metrics.metrics import CONTENT_TYPE, METHODS, OTHER, Metrics
from service.metrics.recorder import Abort, Measured, ModelMetrics

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
