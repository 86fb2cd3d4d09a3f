"""The routes: parse, call, render."""
