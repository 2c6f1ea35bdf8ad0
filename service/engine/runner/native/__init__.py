"""The native package calls our C++ kernels: attention over KV blocks, linear layers, and a decoder step in one call.

Without the kernels the engine serves with torch operations, and says so."""
