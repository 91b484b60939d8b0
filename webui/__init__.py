"""The web page: Gradio code only; no torch and no training code."""
