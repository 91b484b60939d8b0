"""Launchers: where a run is trained; a module without a leading underscore is one of them."""
