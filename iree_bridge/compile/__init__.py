"""From a graph to machine code: the cache, the workers that hold the compiler, and what went wrong in them."""
