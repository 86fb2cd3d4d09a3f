"""Speed measured honestly: Corral beside llama.cpp's own programs, in one run, on one machine."""
