"""What the control service wants this frontend to have, and how it comes to have it."""
