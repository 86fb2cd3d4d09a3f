"""Train the bundled demo model from scratch: corpus, tokenizer, training, export, evaluation."""
