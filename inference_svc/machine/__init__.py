"""What the machine, or the container, gives this process: memory and cores."""
