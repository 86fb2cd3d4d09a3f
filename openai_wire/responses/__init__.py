"""OpenAI's Responses and Conversations: bodies in, objects and events out.

Two dialects read the same bytes: OpenAI's clients, and those of Open Responses, which knows fewer
types and is stricter about nulls. What is written here satisfies both.
"""
