"""Our C++ kernels: attention over KV blocks, linear layers, and a whole decoder step in one call. Without
them the engine serves with torch operations, and says so."""
