"""What the demo model learns: one module for each family of skills, each a source of exchanges."""
