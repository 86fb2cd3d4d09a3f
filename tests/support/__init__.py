"""Builders and processes that tests share."""
