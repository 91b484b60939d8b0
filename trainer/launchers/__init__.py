"""Start runs in different places; every module without a leading underscore is one launcher."""
