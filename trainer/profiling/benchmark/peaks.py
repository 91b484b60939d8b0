"""Peak speeds of GPUs, to compute the share that a training step uses (MFU)."""

# Dense bf16 with fp32 accumulation in TFLOP/s, without sparsity, as published by NVIDIA. The first
# match counts, so longer names come first. Sources: NVIDIA's data sheets for B200, GH200, H200,
# H100, A100, L40S, L40, L4, A40, A30, A10 and RTX 6000 Ada; its white papers "Ada" (RTX 40),
# "Ampere GA102" (RTX 30, RTX A6000) and "RTX Blackwell" (RTX 50).
_TFLOPS = (
    ("B200", 2250.0),
    ("GH200", 989.4),
    ("H200 NVL", 835.5),
    ("H200", 989.4),
    ("H100 NVL", 835.5),
    ("H100 PCIe", 756.0),
    ("H100", 989.4),
    ("A100", 312.0),
    ("A800", 312.0),
    ("L40S", 362.05),
    ("L40", 181.05),
    ("L4", 121.0),
    ("A40", 149.7),
    ("A30", 165.0),
    ("A10G", 70.0),
    ("A10", 125.0),
    ("RTX 6000 Ada", 364.2),
    ("RTX A6000", 154.8),
    ("RTX 5090", 209.5),
    ("RTX 5080", 112.6),
    ("RTX 4090", 165.2),
    ("RTX 4080", 97.5),
    ("RTX 3090 Ti", 80.0),
    ("RTX 3090", 71.0),
    ("RTX 3080", 59.5),
)
_WITH_SUFFIX = ("Laptop", "Max-Q", "SUPER", "D v2")
"""Markers of slower or faster variants, which the table does not contain."""


def peak_flops(device_name: str) -> float | None:
    """Return the dense bf16 peak of a GPU in FLOP/s, or None if it is not known for certain."""
    if any(suffix.lower() in device_name.lower() for suffix in _WITH_SUFFIX):
        return None
    words = f" {device_name.replace('-', ' ')} "
    for name, tflops in _TFLOPS:
        if f" {name.lower()} " in words.lower():
            return tflops * 1e12
    return None
