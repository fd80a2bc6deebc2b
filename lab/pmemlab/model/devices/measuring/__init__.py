"""Device files from the hardware at hand."""
