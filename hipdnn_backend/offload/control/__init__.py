"""If, Loop and Scan whose course only a run knows: their bodies are compiled, and Python goes through them."""
