"""What GGUF files say of themselves, read without trust; two services read them."""
