"""How single ops are measured beside torch's CPU: benchmarks/ops.py and linalg.py say what."""
