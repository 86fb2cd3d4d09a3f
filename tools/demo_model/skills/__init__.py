"""Skills of the demo model: one module for each family, with functions that generate exchanges."""
