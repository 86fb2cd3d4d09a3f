"""Trains the bundled demo model from nothing: corpus, tokenizer, training, export, evaluation."""
