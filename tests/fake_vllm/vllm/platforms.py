"""A host without a GPU."""

from types import SimpleNamespace

current_platform = SimpleNamespace(device_type="cpu", is_cpu=lambda: True)
