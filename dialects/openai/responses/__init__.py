"""OpenAI's Responses and Conversations APIs: request bodies, objects and events.

The output is valid for OpenAI's clients and for the Open Responses specification, which has fewer
types and stricter rules for nulls.
"""
