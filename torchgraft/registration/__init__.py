"""Making a driver's devices a backend of torch: its name, what installed packages offer, the steps, and the end."""
