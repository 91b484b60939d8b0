"""The page: knows Gradio, never names torch, holds no training code."""
