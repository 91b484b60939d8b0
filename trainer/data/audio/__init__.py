"""Audio files: read, write and measure them."""
