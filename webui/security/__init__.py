"""Security: passwords, tokens, origins and limits."""
