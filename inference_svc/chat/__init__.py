"""Chat: conversations, templates, and what comes back."""
